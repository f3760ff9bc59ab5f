"""Black-box audits of diffprivlib's LogisticRegression: one record replaced, data_norm stated, number of records public.

pip install dperm diffprivlib==0.6.6 "scikit-learn==1.6.*"
"""

import warnings

import numpy as np
from diffprivlib.models import LogisticRegression, logistic_regression

from dperm.audit import Pair, distinguish, one_at_a_time
from dperm.privacy import PureDP, Relation

warnings.filterwarnings("ignore")


def audit(name, pair, trials, score, column=(), **settings):
    def train(data):
        rows = np.c_[data[0], np.ones((len(data[1]), len(column)))]
        try:
            model = LogisticRegression(epsilon=1.0, **settings).fit(rows, data[1])
        except ValueError:  # "needs samples of at least 2 classes": tells worlds apart, too
            return [1e9, 1e9]
        return [model.coef_[0, 0], model.coef_[0, 1] if column else model.intercept_[0]]

    claim = PureDP(1.0, Relation.REPLACE_ONE)
    print(name, distinguish(one_at_a_time(train), pair, trials, claim=claim, delta=0.0, score=score), sep=": ", flush=True)


def near_zero(outputs):
    return -np.abs(outputs[:, 0])


def sharpened(norm):  # a row at the norm bound sharpens the objective around zero
    return Pair.replacing("zeros to norm bound", (np.zeros((3, 1)), np.array([0, 1, 0])), np.array([norm]), 1, index=1)


audit("1a. norm 100", sharpened(100.0), 4_000, near_zero, data_norm=100.0, fit_intercept=False)
audit("1b. norm 1", sharpened(1.0), 4_000, near_zero, data_norm=1.0, fit_intercept=False)
audit("1c. norm 100, intercept", sharpened(100.0), 10_000, near_zero, data_norm=100.0)


def saturated(outputs):  # sure of its answer at x = 1, where the first world's records are; unsure at x = -1
    w, c = outputs.T
    return 1.0 * ((np.abs(w + c) > 4) & (np.abs(w - c) < 3))


across = Pair.replacing("x = 1 to x = -1", (np.ones((2, 1)), np.array([0, 1])), np.array([-1.0]), 1)
audit("2a. all defaults, norm 1", across, 8_000, saturated, data_norm=1.0)
audit("2b. constant column for intercept", across, 8_000, saturated, [1], data_norm=2**0.5, fit_intercept=False)
single = Pair.replacing("the only positive label", (np.zeros((10, 1)), 1.0 * (np.arange(10) == 9)), np.zeros(1), 0.0)
audit("3. one class left", single, 200, lambda outputs: 1.0 * (outputs[:, 0] > 1e8), data_norm=1.0)

vector = logistic_regression.Vector  # 1a with the curvature of a record of norm R bounded by R²/4 instead of R/4
logistic_regression.Vector = lambda **s: vector(**(s | {"function_sensitivity": 0.25 * s["data_sensitivity"]}))
audit("1d. 1a, repaired", sharpened(100.0), 4_000, near_zero, data_norm=100.0, fit_intercept=False)
