-- When infection was first suspected in each stay, as MIT-LCP/mimic-code pairs antibiotics with cultures: within an
-- admission, cultures of MICROBIOLOGYEVENTS only; a culture without a time of day may precede the antibiotic by 96 hours.
--
-- Its script takes the culture's time for the onset even where the antibiotic came first; mode 'corrected' takes the
-- earlier of the two. A stay's onset is the first from two days before its beginning to two days after its end.
WITH suspected AS (
    SELECT s.stay, CASE WHEN getvariable('mode') = 'corrected' THEN least(a.time, c.time) ELSE c.time END AS onset
    FROM stays AS s
    JOIN antibiotics AS a USING (hadm_id)
    JOIN cultures AS c USING (hadm_id)
    WHERE c.source = 'microbiology'
        AND (c.time - a.time BETWEEN 0 AND 24 * 3600
             OR a.time - c.time BETWEEN 0 AND if(c.only_date, 96, 72) * 3600)
)
SELECT stay, min(onset) AS onset
FROM suspected JOIN stays AS s USING (stay)
WHERE onset BETWEEN s.intime - 48 * 3600 AND s.outtime + 48 * 3600
GROUP BY stay
ORDER BY stay
