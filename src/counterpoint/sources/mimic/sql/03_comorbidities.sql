-- How many of the 30 Elixhauser comorbidities an admission's diagnoses name (Quan's ICD-9 codes), the first diagnosis
-- aside, for it is why the patient came. A code counts where it begins as listed.
--
-- The codes are facts from MIT-LCP/mimic-code (elixhauser_quan).
WITH listed (comorbidity, codes) AS (VALUES
    ('congestive_heart_failure', ['39891', '40201', '40211', '40291', '40401', '40403', '40411', '40413', '40491',
        '40493', '4254', '4255', '4257', '4258', '4259', '428']),
    ('cardiac_arrhythmias', ['42613', '42610', '42612', '99601', '99604', '4260', '4267', '4269', '4270', '4271', '4272',
        '4273', '4274', '4276', '4278', '4279', '7850', 'V450', 'V533']),
    ('valvular_disease', ['0932', '7463', '7464', '7465', '7466', 'V422', 'V433', '394', '395', '396', '397', '424']),
    ('pulmonary_circulation', ['4150', '4151', '4170', '4178', '4179', '416']),
    ('peripheral_vascular', ['0930', '4373', '4431', '4432', '4438', '4439', '4471', '5571', '5579', 'V434', '440', '441']),
    ('hypertension', ['401', '402', '403', '404', '405']),
    ('paralysis', ['3341', '3440', '3441', '3442', '3443', '3444', '3445', '3446', '3449', '342', '343']),
    ('other_neurological', ['33392', '3319', '3320', '3321', '3334', '3335', '3362', '3481', '3483', '7803', '7843', '334',
        '335', '340', '341', '345']),
    ('chronic_pulmonary', ['4168', '4169', '5064', '5081', '5088', '490', '491', '492', '493', '494', '495', '496', '500',
        '501', '502', '503', '504', '505']),
    ('diabetes_uncomplicated', ['2500', '2501', '2502', '2503']),
    ('diabetes_complicated', ['2504', '2505', '2506', '2507', '2508', '2509']),
    ('hypothyroidism', ['2409', '2461', '2468', '243', '244']),
    ('renal_failure', ['40301', '40311', '40391', '40402', '40403', '40412', '40413', '40492', '40493', '5880', 'V420',
        'V451', '585', '586', 'V56']),
    ('liver_disease', ['07022', '07023', '07032', '07033', '07044', '07054', '0706', '0709', '4560', '4561', '4562', '5722',
        '5723', '5724', '5728', '5733', '5734', '5738', '5739', 'V427', '570', '571']),
    ('peptic_ulcer', ['5317', '5319', '5327', '5329', '5337', '5339', '5347', '5349']),
    ('aids', ['042', '043', '044']),
    ('lymphoma', ['2030', '2386', '200', '201', '202']),
    ('metastatic_cancer', ['196', '197', '198', '199']),
    ('solid_tumor', list_concat(list_transform(range(140, 173), lambda code: code::VARCHAR),
        list_transform(range(174, 196), lambda code: code::VARCHAR))),
    ('rheumatoid_arthritis', ['72889', '72930', '7010', '7100', '7101', '7102', '7103', '7104', '7108', '7109', '7112',
        '7193', '7285', '446', '714', '720', '725']),
    ('coagulopathy', ['2871', '2873', '2874', '2875', '286']),
    ('obesity', ['2780']),
    ('weight_loss', ['7832', '7994', '260', '261', '262', '263']),
    ('fluid_electrolyte', ['2536', '276']),
    ('blood_loss_anemia', ['2800']),
    ('deficiency_anemias', ['2801', '2808', '2809', '281']),
    ('alcohol_abuse', ['2652', '2911', '2912', '2913', '2915', '2918', '2919', '3030', '3039', '3050', '3575', '4255',
        '5353', '5710', '5711', '5712', '5713', 'V113', '980']),
    ('drug_abuse', ['V6542', '3052', '3053', '3054', '3055', '3056', '3057', '3058', '3059', '292', '304']),
    ('psychoses', ['29604', '29614', '29644', '29654', '2938', '295', '297', '298']),
    ('depression', ['2962', '2963', '2965', '3004', '309', '311'])
), code AS (
    SELECT comorbidity, unnest(codes) AS code FROM listed
), beginning AS (
    -- Codes have 3 to 5 characters, so an equality of each length finds every beginning.
    SELECT hadm_id, unnest([left(icd9_code, 3), left(icd9_code, 4), left(icd9_code, 5)]) AS code
    FROM raw_diagnoses_icd
    WHERE seq_num <> 1
), found AS (
    SELECT DISTINCT hadm_id, comorbidity FROM beginning JOIN code USING (code)
), severest AS (
    -- Of two degrees of one illness the worse counts.
    SELECT hadm_id, comorbidity FROM found
    WHERE NOT (comorbidity = 'diabetes_uncomplicated'
               AND hadm_id IN (SELECT hadm_id FROM found WHERE comorbidity = 'diabetes_complicated'))
        AND NOT (comorbidity = 'solid_tumor'
                 AND hadm_id IN (SELECT hadm_id FROM found WHERE comorbidity = 'metastatic_cancer'))
)
SELECT hadm_id, count(*)::INTEGER AS elixhauser FROM severest GROUP BY hadm_id ORDER BY hadm_id
