-- Everything that was measured of suspected adults from 53 hours before onset to 53 after: one value a stay, time and
-- variable, outliers gone. The definition of sepsis looks at -53 to +29 hours of it, the decisions at -29 to +53.
--
-- Of several values at one time that of the highest ITEMID counts, then the highest: the published code keeps whichever
-- the database returned last. An 'other' event has no value: it is a time at which the patient was looked at.
WITH measured AS (
    SELECT c.stay, c.time, c.itemid, c.number, c.word, c.said
    FROM chart AS c JOIN onset AS o USING (stay) JOIN stays AS s USING (stay)
    WHERE s.adult AND c.time BETWEEN o.onset - 53 * 3600 AND o.onset + 53 * 3600
    UNION ALL
    SELECT stay, time, itemid, number, NULL, true FROM labs
), named AS (
    SELECT m.stay, m.time, m.itemid, i.variable, i.lowest, i.highest,
        CASE i.variable
            WHEN 'Interface' THEN CASE lower(m.word)
                WHEN 'none' THEN 0 WHEN 'ventilator' THEN 1 WHEN 'cannula' THEN 2 WHEN 'nasal cannula' THEN 2
                WHEN 'face tent' THEN 3 WHEN 'aerosol-cool' THEN 4 WHEN 'trach mask' THEN 5 WHEN 'hi flow neb' THEN 6
                WHEN 'non-rebreather' THEN 7 WHEN 'venti mask' THEN 9 WHEN 'medium conc mask' THEN 10
                -- MetaVision's own words (item 226732).
                WHEN 'endotracheal tube' THEN 1 WHEN 'tracheostomy tube' THEN 1 WHEN 'high flow neb' THEN 6 END
            WHEN 'mechvent' THEN CASE
                WHEN m.itemid = 640 THEN 0
                WHEN m.itemid = 720 THEN (m.word <> 'Other/Remarks')::INTEGER
                WHEN m.itemid = 467 THEN (m.word = 'Ventilator')::INTEGER
                ELSE 1 END
            WHEN 'SpO2' THEN if(m.number > 150, NULL, least(m.number, 100))
            WHEN 'FiO2_100' THEN if(m.number < 1, 100 * m.number, m.number)
            WHEN 'other' THEN NULL
            ELSE m.number END::DOUBLE AS value
    FROM measured AS m JOIN items AS i USING (itemid)
    WHERE i.variable <> 'culture' AND m.said
), believed AS (
    SELECT stay, time, variable, itemid,
        CASE WHEN value >= coalesce(lowest, '-infinity'::DOUBLE) AND value <= coalesce(highest, 'infinity'::DOUBLE) THEN value END AS value
    FROM named
), one AS (
    SELECT stay, time, variable,
        CASE WHEN variable = 'mechvent' THEN max(value) ELSE arg_max(value, (itemid, value)) END AS value
    FROM believed
    GROUP BY stay, time, variable
), summed AS (
    SELECT stay, time, 'GCS' AS variable, sum(value) AS value
    FROM one WHERE variable IN ('GCS_eye', 'GCS_verbal', 'GCS_motor')
    GROUP BY stay, time HAVING count(value) = 3
)
SELECT stay, time, variable, value FROM one WHERE variable NOT IN ('GCS_eye', 'GCS_verbal', 'GCS_motor')
UNION ALL
SELECT stay, time, variable, value FROM summed
WHERE (stay, time) NOT IN (SELECT (stay, time) FROM one WHERE variable = 'GCS')
ORDER BY stay, time, variable
