-- Fluid into the veins as millilitres of normal saline: 100 mL of a fluid twice as salty count 200.
--
-- rate (mL/hour) from start to stop where one is charted, else the volume at start, as all of CareVue is.
-- ITEMIDs and factors are facts from matthieukomorowski/AI_Clinician. Its list has 3000630061 for 30006 and 30061, which
-- loses both, and it counts orders that were rewritten, so twice; mode 'corrected' mends both.
WITH listed (factor, items) AS (VALUES
    (0.25, [30176, 30315]),
    (0.3, [30161]),
    (0.5, [30020, 30015, 225823, 30321, 30186, 30211, 30353, 42742, 42244, 225159]),
    (2.75, [227531]),
    (3, [30143, 225161]),
    (5, [30009, 220862]),
    (6.66, [30030, 220995, 227533]),
    (8, [228341]),
    (1, list_concat([225158, 225943, 226089, 225168, 225828, 220970, 220864, 225170, 225825, 225171, 225827, 225941, 30018,
        30021, 30296, 30066, 30001, 30060, 30005, 30179, 30190, 30160, 30008, 30168, 30159, 30007, 30185, 30063, 30094,
        30352, 30014, 30011, 30210, 46493, 45399, 46516, 40850, 30381, 30180, 46087, 41491, 30004, 42698],
        if(getvariable('mode') = 'corrected', [30006, 30061], [])))
), fluid AS (
    SELECT unnest(items)::INTEGER AS itemid, factor::DOUBLE AS factor FROM listed
), given AS (
    SELECT icustay_id AS stay, epoch(starttime)::BIGINT AS start, epoch(endtime)::BIGINT AS stop, itemid,
        round(amount, 3) AS amount, round(rate, 3) AS rate
    FROM raw_inputevents_mv
    WHERE getvariable('mode') = 'faithful' OR statusdescription IS DISTINCT FROM 'Rewritten'
    UNION ALL
    SELECT icustay_id, epoch(charttime)::BIGINT, NULL, itemid, round(amount, 3), NULL FROM raw_inputevents_cv
)
SELECT stay, start, stop, factor * rate AS rate, factor * amount AS volume
FROM given JOIN fluid USING (itemid) JOIN onset USING (stay)
WHERE amount IS NOT NULL AND start IS NOT NULL
ORDER BY stay, start, stop, itemid, rate, volume
