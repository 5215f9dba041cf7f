-- Which charted item and which laboratory test measures what, and how far a value of it can be believed.
--
-- variable  name of the column that it becomes; 'culture' is a sample that was sent, 'mechvent' a sign of a ventilator,
--           'other' an item that is no feature but whose time counts as a time at which the patient was looked at
-- lowest, highest   values outside are slips of the hand and are dropped
-- hold      hours for which the last value stands for what nobody measured
-- items     ITEMIDs of CHARTEVENTS and LABEVENTS
-- added     what the published list forgot, for mode 'corrected'
-- wrong     what the published list has and should not, left out in mode 'corrected'
--
-- The ITEMIDs, limits and hours are facts from matthieukomorowski/AI_Clinician and microsoft/mimic_sepsis
-- (Reflabs, Refvitals, sample_and_hold), ventilator items from MIT-LCP/mimic-code. The published table holds potassium
-- for 144 hours where its neighbours have 14: mode 'corrected' takes 14.
WITH listed (variable, lowest, highest, hold, items, added, wrong) AS (VALUES
    ('Weight_kg', NULL, 300, 72, [581, 580, 224639, 226512], [], []),
    -- MetaVision has no total: eye, verbal and motor response are summed where all three were charted (09_events).
    ('GCS', NULL, NULL, 6, [198], [], []),
    ('GCS_eye', NULL, NULL, 6, [], [220739], []),
    ('GCS_verbal', NULL, NULL, 6, [], [223900], []),
    ('GCS_motor', NULL, NULL, 6, [], [223901], []),
    ('RASS', NULL, NULL, 6, [228096], [], []),
    ('HR', NULL, 250, 2, [211, 220045], [], []),
    -- Arterial and cuff pressures of MetaVision are missing from the published lists of systolic and diastolic.
    ('SysBP', NULL, 300, 2, [220179, 225309, 6701, 6, 227243, 224167, 51, 455], [220050], []),
    ('MeanBP', 0, 200, 2, [220181, 220052, 225312, 224322, 6702, 443, 52, 456], [], []),
    ('DiaBP', 0, 200, 2, [8368, 8441, 225310, 8555, 8440], [220051, 220180], []),
    ('RR', NULL, 80, 2, [220210, 3337, 224422, 618, 3603, 615], [], []),
    ('SpO2', 50, 150, 2, [220277, 646, 834], [], []),
    ('Temp_C', 25, NULL, 6, [3655, 223762], [], []),
    ('Temp_F', NULL, NULL, 6, [223761, 678], [], []),
    ('Interface', NULL, NULL, 24, [467], [226732], []),
    ('FiO2_100', 20, 100, 12, [223835, 3420, 160, 727], [], []),
    ('FiO2_1', NULL, 1.5, 12, [190], [], []),
    ('O2flow', NULL, 70, 12, [470, 471, 223834, 227287, 194, 224691], [], []),
    ('Potassium', 1, 15, if(getvariable('mode') = 'corrected', 14, 144), [829, 1535, 227442, 227464, 3792, 50971, 50822], [], []),
    ('Sodium', 95, 178, 14, [837, 220645, 4194, 3725, 3803, 226534, 1536, 4195, 3726, 50983, 50824], [], []),
    ('Chloride', 70, 150, 14, [788, 220602, 1523, 4193, 3724, 226536, 3747, 50902, 50806], [], []),
    ('Glucose', 1, 1000, 14, [225664, 807, 811, 1529, 220621, 226537, 3744, 50809, 50931], [], []),
    ('BUN', NULL, NULL, 28, [781, 1162, 225624, 3737, 51006], [], []),
    -- 51081 and 51464 are tests of urine.
    ('Creatinine', NULL, 150, 28, [791, 1525, 220615, 3750, 50912, 51081], [], [51081]),
    ('Magnesium', NULL, 10, 28, [821, 1532, 220635, 50960], [], []),
    ('Calcium', NULL, 20, 28, [786, 225625, 1522, 3746, 50893], [], []),
    ('Ionised_Ca', NULL, 5, 28, [816, 225667, 3766, 50808], [], []),
    ('CO2_mEqL', NULL, 120, 28, [777, 787, 50804], [], []),
    ('SGOT', NULL, 10000, 28, [770, 3801, 50878], [], []),
    ('SGPT', NULL, 10000, 28, [769, 3802, 50861], [], []),
    ('Total_bili', NULL, NULL, 28, [1538, 848, 225690, 51464, 50885], [], [51464]),
    ('Direct_bili', NULL, NULL, 28, [803, 1527, 225651, 50883], [], []),
    ('Albumin', NULL, NULL, 28, [772, 1521, 227456, 3727, 50862], [], []),
    ('Hb', NULL, 20, 14, [814, 220228, 50811, 51222], [], []),
    ('Ht', NULL, 65, 28, [813, 220545, 3761, 226540, 51221, 50810], [], []),
    ('WBC_count', NULL, 500, 28, [1127, 1542, 220546, 4200, 3834, 51300, 51301], [], []),
    ('Platelets_count', NULL, 2000, 28, [828, 227457, 3789, 51265], [], []),
    ('PTT', NULL, NULL, 28, [825, 1533, 227466, 3796, 51275], [], []),
    ('PT', NULL, NULL, 28, [824, 1286, 51274], [], []),
    ('INR', NULL, 20, 28, [815, 1530, 227467, 51237], [], []),
    ('Arterial_pH', 6.7, 8, 8, [780, 1126, 3839, 4753, 50820], [], []),
    ('paO2', NULL, 700, 8, [779, 490, 3785, 3838, 3837, 50821], [], []),
    ('paCO2', NULL, 200, 8, [778, 3784, 3836, 3835, 50818], [], []),
    ('Arterial_BE', -50, NULL, 8, [776, 224828, 3736, 4196, 3740, 74, 50802], [], []),
    ('Arterial_lactate', NULL, 30, 8, [225668, 1531, 50813], [], []),
    ('HCO3', NULL, NULL, 8, [227443, 50882, 50803], [], []),
    ('mechvent', NULL, NULL, 6, [
        640, 720, 467, 445, 448, 449, 450, 1340, 1486, 1600, 224687, 639, 654, 681, 682, 683, 684, 224685, 224684,
        224686, 218, 436, 535, 444, 459, 224697, 224695, 224696, 224746, 224747, 221, 1, 1211, 1655, 2000, 226873,
        224738, 224419, 224750, 227187, 543, 5865, 5866, 224707, 224709, 224705, 224706, 60, 437, 505, 506, 686, 220339,
        224700, 3459, 501, 502, 503, 224702, 223, 667, 668, 669, 670, 671, 672, 157, 158, 1852, 3398, 3399, 3400, 3401,
        3402, 3403, 3404, 8382, 227809, 227810, 224701], [], []),
    -- Height, pressures of the lung's arteries, airway pressures, tests that are no features.
    ('other', NULL, NULL, NULL, [
        226707, 226730, 220074, 113, 492, 491, 8448, 116, 1372, 1366, 228368, 228177, 626, 220339, 506, 505, 224700,
        224686, 224684, 684, 224421, 3083, 2566, 654, 3050, 681, 2311, 224687, 450, 448, 445, 224697, 444, 224695, 535,
        224696, 543, 3807, 1539, 849, 50976, 227429, 851, 51002, 51003, 227444, 50889, 4197, 3799, 51279, 1671, 1520,
        768, 220507, 1817, 228640, 823, 227686], [], []),
    ('culture', NULL, NULL, NULL, [
        6035, 3333, 938, 941, 942, 4855, 6043, 2929, 225401, 225437, 225444, 225451, 225454, 225814, 225816, 225817,
        225818, 225722, 225723, 225724, 225725, 225726, 225727, 225728, 225729, 225730, 225731, 225732, 225733, 227726,
        70006, 70011, 70012, 70013, 70014, 70016, 70024, 70037, 70041, 225734, 225735, 225736, 225768, 70055, 70057,
        70060, 70063, 70075, 70083, 226131, 80220], [], [])
), chosen AS (
    SELECT variable, lowest::DOUBLE AS lowest, highest::DOUBLE AS highest, hold::INTEGER AS hold,
        if(getvariable('mode') = 'corrected',
           list_filter(list_concat(items::INTEGER[], added::INTEGER[]), lambda item: NOT list_contains(wrong::INTEGER[], item)),
           items::INTEGER[]) AS items
    FROM listed
)
SELECT DISTINCT unnest(items) AS itemid, variable, lowest, highest, hold
FROM chosen
ORDER BY variable, itemid
