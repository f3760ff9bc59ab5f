"""Black-box audits of other diffprivlib models at epsilon = 1: one record replaced, bounds stated, n public.

pip install dperm diffprivlib==0.6.6 "scikit-learn==1.6.*"
"""

import warnings

import numpy as np
from diffprivlib.models import GaussianNB, LinearRegression, StandardScaler

from dperm.audit import Pair, distinguish, one_at_a_time
from dperm.privacy import PureDP, Relation

warnings.filterwarnings("ignore")


def audit(name, train, pair, trials, score=None):
    claim = PureDP(1.0, Relation.REPLACE_ONE)
    print(name, distinguish(one_at_a_time(train), pair, trials, claim=claim, delta=0.0, score=score), sep=": ", flush=True)


def regression(low, **settings):
    def train(data):
        model = LinearRegression(epsilon=1.0, bounds_X=(low, 1), bounds_y=(-1, 1), **settings).fit(*data)
        return np.clip(np.nan_to_num(model.coef_), -1e12, 1e12)

    return train


def near_zero(outputs):
    return -np.abs(outputs[:, 0])


larger = Pair.replacing("x = 0.1 to x = 1", (np.full((5, 1), 0.1), np.zeros(5)), np.ones(1), 0.0)
audit("LinearRegression, x in [0, 1], no intercept", regression(0, fit_intercept=False), larger, 2_000, near_zero)
audit("LinearRegression, x in [-1, 1], no intercept", regression(-1, fit_intercept=False), larger, 2_000, near_zero)
audit("LinearRegression, x in [0, 1], intercept", regression(0), larger, 2_000, near_zero)


def bayes(low):
    def train(data):
        model = GaussianNB(epsilon=1.0, bounds=(low, low + 1)).fit(*data)
        return [model.theta_, model.var_, model.class_count_]

    return train


for low in (100.0, 0.0):
    flip = Pair.replacing("a label flips", (np.full((8, 1), low + 1), np.arange(8) % 2), np.full(1, low + 1), 0)
    audit(f"GaussianNB, x in [{low:g}, {low + 1:g}]", bayes(low), flip, 3_000)


def scaler(data):
    model = StandardScaler(epsilon=1.0, bounds=(0, 1)).fit(data[0])
    return [model.mean_, model.var_]


audit("StandardScaler", scaler, Pair.replacing("0 to 1", (np.zeros((4, 1)), np.zeros(4)), np.ones(1), 0.0), 3_000)
