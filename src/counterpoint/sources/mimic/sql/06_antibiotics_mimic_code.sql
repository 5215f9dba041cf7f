-- When an antibiotic was prescribed, by name, as MIT-LCP/mimic-code lists them: a drug that somebody had by mouth, vein or
-- muscle; what only ever went into eyes, ears or onto the skin is none.
WITH named AS (
    SELECT DISTINCT drug
    FROM raw_prescriptions
    WHERE drug_type IN ('MAIN', 'ADDITIVE')
        AND route NOT IN ('OU', 'OS', 'OD', 'AU', 'AS', 'AD', 'TP')
        AND NOT regexp_matches(lower(route), 'ear|eye')
        AND NOT regexp_matches(lower(drug), 'cream|desensitization|ophth oint|gel')
        AND regexp_matches(lower(drug), concat_ws('|',
            'adoxa', 'ala-tet', 'alodox', 'amikacin', 'amikin', 'amoxicillin', 'clavulanate', 'ampicillin', 'augmentin',
            'avelox', 'avidoxy', 'azactam', 'azithromycin', 'aztreonam', 'axetil', 'bactocill', 'bactrim', 'bethkis',
            'biaxin', 'bicillin l-a', 'cayston', 'cefazolin', 'cedax', 'cefoxitin', 'ceftazidime', 'cefaclor',
            'cefadroxil', 'cefdinir', 'cefditoren', 'cefepime', 'cefotetan', 'cefotaxime', 'cefpodoxime', 'cefprozil',
            'ceftibuten', 'ceftin', 'cefuroxime', 'cephalexin', 'chloramphenicol', 'cipro', 'claforan',
            'clarithromycin', 'cleocin', 'clindamycin', 'cubicin', 'dicloxacillin', 'doryx', 'doxycycline', 'duricef',
            'dynacin', 'ery-tab', 'eryped', 'eryc', 'erythrocin', 'erythromycin', 'factive', 'flagyl', 'fortaz',
            'furadantin', 'garamycin', 'gentamicin', 'kanamycin', 'keflex', 'ketek', 'levaquin', 'levofloxacin',
            'lincocin', 'macrobid', 'macrodantin', 'maxipime', 'mefoxin', 'metronidazole', 'minocin', 'minocycline',
            'monodox', 'monurol', 'morgidox', 'moxatag', 'moxifloxacin', 'myrac', 'nafcillin sodium', 'nicazel doxy 30',
            'nitrofurantoin', 'noroxin', 'ocudox', 'ofloxacin', 'omnicef', 'oracea', 'oraxyl', 'oxacillin', 'pc pen vk',
            'pce dispertab', 'panixine', 'pediazole', 'penicillin', 'periostat', 'pfizerpen', 'piperacillin',
            'tazobactam', 'primsol', 'proquin', 'raniclor', 'rifadin', 'rifampin', 'rocephin', 'smz-tmp', 'septra',
            'solodyn', 'spectracef', 'streptomycin sulfate', 'sulfadiazine', 'sulfamethoxazole', 'trimethoprim',
            'sulfatrim', 'sulfisoxazole', 'suprax', 'synercid', 'tazicef', 'tetracycline', 'timentin', 'tobi',
            'tobramycin', 'unasyn', 'vancocin', 'vancomycin', 'vantin', 'vibativ', 'vibra-tabs', 'vibramycin',
            'zinacef', 'zithromax', 'zmax', 'zosyn', 'zyvox'))
)
SELECT DISTINCT hadm_id, NULL::INTEGER AS stay, epoch(startdate)::BIGINT AS time
FROM raw_prescriptions
WHERE startdate IS NOT NULL AND drug IN (SELECT drug FROM named)
