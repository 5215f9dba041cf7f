-- Urine as it came. ITEMIDs are facts from matthieukomorowski/AI_Clinician.
SELECT icustay_id AS stay, epoch(charttime)::BIGINT AS time, value AS volume
FROM raw_outputevents
JOIN onset ON onset.stay = icustay_id
WHERE value IS NOT NULL AND charttime IS NOT NULL AND itemid IN (
    40055, 43175, 40069, 40094, 40715, 40473, 40085, 40057, 40056, 40405, 40428, 40096, 40651, 226559, 226560, 227510,
    226561, 227489, 226584, 226563, 226564, 226565, 226557, 226558)
ORDER BY stay, time, itemid, volume
