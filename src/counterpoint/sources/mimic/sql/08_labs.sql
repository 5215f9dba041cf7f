-- Laboratory tests of suspected adults, from a day before the stay to a day after it. LABEVENTS knows admissions only.
SELECT s.stay, epoch(l.charttime)::BIGINT AS time, l.itemid, l.valuenum AS number
FROM raw_labevents AS l
JOIN stays AS s USING (hadm_id)
JOIN onset AS o USING (stay)
WHERE s.adult
    AND l.itemid IN (SELECT itemid FROM items)
    AND l.valuenum IS NOT NULL
    AND epoch(l.charttime) BETWEEN s.intime - 86400 AND s.outtime + 86400
    AND epoch(l.charttime) BETWEEN o.onset - 53 * 3600 AND o.onset + 53 * 3600
