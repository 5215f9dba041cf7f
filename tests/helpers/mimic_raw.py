"""A tiny hand-made MIMIC-III: a few patients whose every number is known."""

import gzip
from pathlib import Path

import pandas as pd

from counterpoint.sources.mimic.source import TABLES

ARRIVED = pd.Timestamp("2150-01-01")
ONSET = 24.0
"""Hours after arrival at which the antibiotic is given, before the culture: the onset."""
CHART = {"Weight_kg": (581, 80.0), "GCS": (198, 15.0), "HR": (211, 80.0), "SysBP": (51, 120.0), "MeanBP": (52, 80.0),
         "DiaBP": (8368, 60.0), "RR": (618, 16.0), "SpO2": (646, 98.0), "Temp_C": (3655, 37.0),
         "FiO2_1": (190, 0.5)}  # fmt: skip
LABS = {"Potassium": (50971, 4.0), "Sodium": (50983, 140.0), "Chloride": (50902, 100.0), "Glucose": (50931, 120.0),
        "BUN": (51006, 20.0), "Creatinine": (50912, 2.5), "Magnesium": (50960, 2.0), "Calcium": (50893, 8.0),
        "Ionised_Ca": (50808, 1.1), "CO2_mEqL": (50804, 25.0), "SGOT": (50878, 40.0), "SGPT": (50861, 30.0),
        "Total_bili": (50885, 1.0), "Albumin": (50862, 3.0), "Hb": (51222, 10.0), "WBC_count": (51301, 10.0),
        "Platelets_count": (51265, 200.0), "PTT": (51275, 30.0), "PT": (51274, 13.0), "INR": (51237, 1.1),
        "Arterial_pH": (50820, 7.4), "paO2": (50821, 250.0), "paCO2": (50818, 40.0), "Arterial_BE": (50802, 0.0),
        "Arterial_lactate": (50813, 1.5), "HCO3": (50882, 24.0)}  # fmt: skip


def at(hours: float) -> str:
    return str(ARRIVED + pd.Timedelta(hours=hours))


class RawMimic:
    """Rows of every table; `write` makes the folder."""

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, object]]] = {name: [] for name in TABLES}

    def add(self, table: str, **values: object) -> None:
        self.rows[table].append(values)

    def patient(self, number: int, died: bool = False, hours: int = 40) -> None:
        """A patient who is looked at every other hour and gets fluid and a vasopressor that grow with the number."""
        who = self.who(number)
        subject, hadm = {"subject_id": who["subject_id"]}, {"hadm_id": who["hadm_id"]}
        ends = at(300) if died else ""
        self.add("patients", **subject, gender="MF"[number % 2], dob="2090-01-01", dod=ends)
        self.add("admissions", **subject, **hadm, admittime=at(-1), dischtime=at(300), hospital_expire_flag=int(died))
        self.add("icustays", **who, intime=at(0), outtime=at(240))
        self.add("prescriptions", **hadm, icustay_id=who["icustay_id"], startdate=at(ONSET), drug_type="MAIN",
                 drug="Vancomycin", gsn="009331", route="IV")  # fmt: skip
        self.add("prescriptions", **hadm, icustay_id="", startdate=at(ONSET), drug_type="MAIN", drug="Cefepime",
                 gsn="024095", route="IV")  # fmt: skip
        self.add("microbiologyevents", **subject, **hadm, chartdate=at(24), charttime=at(ONSET + 6))
        self.add("diagnoses_icd", **hadm, seq_num=1, icd9_code="0389")
        self.add("diagnoses_icd", **hadm, seq_num=2, icd9_code="4280")
        for hour in range(0, hours, 2):
            for item, value in CHART.values():
                self.chart(number, hour, item, value)
            self.lab(number, hour)
            self.add("outputevents", icustay_id=who["icustay_id"], charttime=at(hour + 1), itemid=40055, value=100)
        self.fluid(number, 5, 220949 if number == 0 else 225158, 100.0 * (number + 1))
        self.add("inputevents_cv", icustay_id=who["icustay_id"], charttime=at(9), itemid=30120, amount="",
                 rate=0.05 * (number + 1), rateuom="mcgkgmin")  # fmt: skip

    def who(self, number: int) -> dict[str, object]:
        return {"subject_id": 71001 + number, "hadm_id": 181001 + number, "icustay_id": 281001 + number}

    def chart(self, number: int, hour: float, item: int, value: object, error: object = "") -> None:
        number_of = value if isinstance(value, int | float) else ""
        self.add("chartevents", **self.who(number), itemid=item, charttime=at(hour), value=value, valuenum=number_of,
                 error=error)  # fmt: skip

    def lab(self, number: int, hour: float, **other: float) -> None:
        for name, (item, value) in LABS.items():
            self.add("labevents", hadm_id=self.who(number)["hadm_id"], itemid=item, charttime=at(hour),
                     valuenum=other.get(name, value))  # fmt: skip

    def fluid(self, number: int, hour: float, item: int, amount: float) -> None:
        self.add("inputevents_cv", icustay_id=self.who(number)["icustay_id"], charttime=at(hour), itemid=item,
                 amount=amount, rate="", rateuom="")  # fmt: skip

    def infusion(
        self, number: int, start: float, stop: float, item: int, status: str = "Stopped", **values: object
    ) -> None:
        self.add("inputevents_mv", icustay_id=self.who(number)["icustay_id"], starttime=at(start), endtime=at(stop),
                 itemid=item, statusdescription=status, **values)  # fmt: skip

    def write(self, folder: Path, upper: bool = False, packed: bool = False) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for name, columns in TABLES.items():
            text = pd.DataFrame(self.rows[name], columns=list(columns)).to_csv(index=False)
            if upper:
                head, _, rest = text.partition("\n")
                text = f"{head.upper()}\n{rest}"
            file = folder / f"{name.upper() if upper else name}.csv{'.gz' if packed else ''}"
            file.write_bytes(gzip.compress(text.encode(), mtime=0) if packed else text.encode())
        return folder


def ward(count: int = 6) -> RawMimic:
    """Some patients; the last one died."""
    raw = RawMimic()
    for number in range(count):
        raw.patient(number, died=number == count - 1)
    return raw
