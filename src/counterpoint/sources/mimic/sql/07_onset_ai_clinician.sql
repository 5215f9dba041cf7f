-- When infection was first suspected in each stay: an antibiotic and then a culture within 24 hours, or a culture and then
-- an antibiotic within 72; the earlier of the two is the onset (Seymour et al., JAMA 315, 2016).
--
-- A sample or prescription without a stay goes to the patient's (the admission's) last stay from two days before whose
-- beginning to two days after whose end it falls; else to the only stay there is.
-- The published code compares each antibiotic with the nearest culture only; mode 'corrected' with every culture.
WITH culture AS (
    SELECT c.time, coalesce(
        any_value(c.stay),
        arg_max(s.stay, (s.intime, s.stay)) FILTER (c.time BETWEEN s.intime - 48 * 3600 AND s.outtime + 48 * 3600),
        CASE WHEN count(DISTINCT s.stay) = 1 THEN min(s.stay) END,
        CASE WHEN count(DISTINCT s.stay) FILTER (s.hadm_id = c.hadm_id) = 1
            THEN min(s.stay) FILTER (s.hadm_id = c.hadm_id) END) AS stay
    FROM cultures AS c JOIN stays AS s USING (subject_id)
    GROUP BY c.subject_id, c.hadm_id, c.stay, c.time
), antibiotic AS (
    SELECT a.time, coalesce(
        any_value(a.stay),
        arg_max(s.stay, (s.intime, s.stay)) FILTER (a.time BETWEEN s.intime - 48 * 3600 AND s.outtime + 48 * 3600),
        CASE WHEN count(DISTINCT s.stay) = 1 THEN min(s.stay) END) AS stay
    FROM antibiotics AS a JOIN stays AS s USING (hadm_id)
    GROUP BY a.hadm_id, a.stay, a.time
), pair AS (
    SELECT DISTINCT stay, a.time AS given, c.time AS sampled, abs(a.time - c.time) AS apart
    FROM antibiotic AS a JOIN culture AS c USING (stay)
), considered AS (
    SELECT stay, given, sampled FROM pair WHERE getvariable('mode') = 'corrected'
    UNION ALL
    SELECT stay, given, arg_min(sampled, (apart, sampled)) FROM pair WHERE getvariable('mode') = 'faithful' GROUP BY stay, given
), suspected AS (
    SELECT stay, given, least(given, sampled) AS onset FROM considered
    WHERE sampled - given BETWEEN 0 AND 24 * 3600 OR given - sampled BETWEEN 0 AND 72 * 3600
)
SELECT stay,
    CASE WHEN getvariable('mode') = 'corrected' THEN min(onset) ELSE arg_min(onset, (given, onset)) END AS onset
FROM suspected
GROUP BY stay
ORDER BY stay
