-- Fluid and urine of the time before the stay, which the ward charts as one sum. MetaVision's where there is one.
--
-- ITEMIDs are facts from matthieukomorowski/AI_Clinician, which looks the urine up under another number of the stay and
-- so never finds it; mode 'corrected' counts it.
WITH item AS (
    SELECT unnest([30054, 30055, 30101, 30102, 30103, 30104, 30105, 30108, 226361, 226363, 226364, 226365, 226367, 226368,
        226369, 226370, 226371, 226372, 226375, 226376, 227070, 227071, 227072]) AS itemid
), metavision AS (
    -- Decimals, because the sum of floating-point numbers depends on their order.
    SELECT icustay_id AS stay, sum(amount::DECIMAL(18, 3)) AS fluid FROM raw_inputevents_mv JOIN item USING (itemid) GROUP BY ALL
), carevue AS (
    SELECT icustay_id AS stay, sum(amount::DECIMAL(18, 3)) AS fluid FROM raw_inputevents_cv JOIN item USING (itemid) GROUP BY ALL
), urine AS (
    SELECT icustay_id AS stay, sum(value::DECIMAL(18, 3)) AS urine FROM raw_outputevents
    WHERE itemid IN (40060, 226633) AND getvariable('mode') = 'corrected' GROUP BY ALL
)
SELECT stay, coalesce(metavision.fluid, carevue.fluid, 0)::DOUBLE AS fluid, coalesce(urine.urine, 0)::DOUBLE AS urine
FROM onset LEFT JOIN metavision USING (stay) LEFT JOIN carevue USING (stay) LEFT JOIN urine USING (stay)
ORDER BY stay
