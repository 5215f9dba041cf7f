-- What is needed of CHARTEVENTS, the one file too large to be read twice (330 million rows).
--
-- A word is kept only for the items that say something in words. The published code keeps values that the ward itself
-- marked as mistaken (error = 1); mode 'corrected' drops them.
SELECT
    subject_id, hadm_id, icustay_id AS stay, epoch(charttime)::BIGINT AS time, itemid, valuenum AS number,
    CASE WHEN itemid IN (467, 226732, 640, 720) THEN value END AS word,
    value IS NOT NULL AS said
FROM raw_chartevents
WHERE itemid IN (SELECT itemid FROM items)
    AND charttime IS NOT NULL
    AND (getvariable('mode') = 'faithful' OR error IS DISTINCT FROM 1)
