-- When a sample was sent to be cultured, positive or not. A sample without a time of day counts from midnight, and says so.
SELECT DISTINCT
    subject_id, hadm_id, NULL::INTEGER AS stay, epoch(coalesce(charttime, chartdate))::BIGINT AS time,
    charttime IS NULL AS only_date, 'microbiology' AS source
FROM raw_microbiologyevents
WHERE coalesce(charttime, chartdate) IS NOT NULL
UNION
SELECT DISTINCT subject_id, hadm_id, stay, time, false, 'chart'
FROM chart
WHERE itemid IN (SELECT itemid FROM items WHERE variable = 'culture')
