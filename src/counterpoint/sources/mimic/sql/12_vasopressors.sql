-- Vasopressors as norepinephrine in micrograms per kilogram and minute, from start to stop; CareVue charts moments.
--
-- ITEMIDs and factors are facts from matthieukomorowski/AI_Clinician: epinephrine 1, vasopressin 5 per unit and minute,
-- phenylephrine 0.45, dopamine 0.01; 80 kg where the rate is not per kilogram. A rate of vasopressin above 0.2 is per hour
-- whatever its unit says. At 0.2 per minute exactly the published rules for CareVue have a gap, which 'corrected' closes.
WITH drug (factor, per_unit, items) AS (VALUES
    (1, false, [30120, 221906, 30047]),
    (1, false, [30119, 221289]),
    (5, true, [30051, 222315]),
    (0.45, false, [30128, 221749, 30127]),
    (0.01, false, [221662, 30043, 30307])
), item AS (
    SELECT unnest(items)::INTEGER AS itemid, factor::DOUBLE AS factor, per_unit FROM drug
), given AS (
    SELECT icustay_id AS stay, epoch(starttime)::BIGINT AS start, epoch(endtime)::BIGINT AS stop, itemid, rate,
        replace(rateuom, '/', '') AS unit, false AS carevue
    FROM raw_inputevents_mv WHERE statusdescription IS DISTINCT FROM 'Rewritten'
    UNION ALL
    SELECT icustay_id, epoch(charttime)::BIGINT, epoch(charttime)::BIGINT, itemid, rate, rateuom, true FROM raw_inputevents_cv
), standard AS (
    SELECT stay, start, stop, itemid, round(factor * rate * CASE
        WHEN per_unit AND rate > 0.2 THEN 1.0 / 60
        WHEN per_unit AND carevue AND rate = 0.2 AND getvariable('mode') = 'faithful' THEN NULL
        WHEN per_unit AND unit IN ('unitsmin', 'Umin') THEN 1
        WHEN per_unit AND unit IN ('unitshour', 'Uhr') THEN 1.0 / 60
        WHEN NOT per_unit AND unit = 'mcgkgmin' THEN 1
        WHEN NOT per_unit AND unit = 'mcgmin' THEN 1.0 / 80 END, 3) AS dose
    FROM given JOIN item USING (itemid) JOIN onset USING (stay)
)
SELECT stay, start, stop, dose FROM standard
WHERE dose IS NOT NULL AND start IS NOT NULL AND stop IS NOT NULL
ORDER BY stay, start, stop, itemid, dose
