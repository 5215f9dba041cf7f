-- Every stay in intensive care: who, when, and how it ended. Times are seconds.
--
-- Ages above 89 are hidden in MIMIC-III as 300 years: 91.4 stands for them, the median that its authors give.
-- The published code takes for dead in hospital whoever died less than a day after discharge, and for re-admitted
-- whoever was in intensive care before, ever; mode 'corrected' takes the hospital's own flag, and 30 days.
WITH joined AS (
    SELECT
        i.icustay_id AS stay, i.subject_id, i.hadm_id, p.gender, a.hospital_expire_flag,
        epoch(i.intime)::BIGINT AS intime, epoch(i.outtime)::BIGINT AS outtime,
        epoch(a.admittime)::BIGINT AS admittime, epoch(a.dischtime)::BIGINT AS dischtime,
        epoch(p.dod)::BIGINT AS dod, (epoch(i.intime) - epoch(p.dob)) / 86400 AS days_old,
        coalesce(c.elixhauser, 0) AS elixhauser
    FROM raw_icustays AS i
    JOIN raw_admissions AS a USING (hadm_id)
    JOIN raw_patients AS p ON p.subject_id = i.subject_id
    LEFT JOIN comorbidities AS c USING (hadm_id)
)
SELECT
    stay, subject_id, hadm_id, intime, outtime, dischtime, elixhauser,
    days_old > 6574 AS adult,
    if(days_old > 150 * 365.25, 91.4, days_old / 365.25) AS age,
    (gender = 'F')::INTEGER AS gender,
    CASE WHEN getvariable('mode') = 'faithful'
        THEN row_number() OVER (PARTITION BY subject_id ORDER BY intime, stay) > 1
        ELSE EXISTS (
            SELECT 1 FROM joined AS earlier
            WHERE earlier.subject_id = joined.subject_id AND earlier.hadm_id <> joined.hadm_id
                AND joined.admittime - earlier.dischtime BETWEEN 0 AND 30 * 86400)
    END::INTEGER AS re_admission,
    CASE WHEN getvariable('mode') = 'faithful' THEN coalesce(dod - dischtime <= 86400, false)
        ELSE hospital_expire_flag = 1
    END::INTEGER AS died_in_hosp,
    coalesce(dod - intime <= 90 * 86400, false)::INTEGER AS mortality_90d,
    coalesce(abs(dod - outtime) < 48 * 3600, false)::INTEGER AS died_within_48h_of_out_time
FROM joined
ORDER BY stay
