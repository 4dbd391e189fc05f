"""Judge the scores of another tool by a rule of one's own, beside ours."""

import dataclasses
import tempfile
from pathlib import Path

import lightgbm
import numpy as np

import tierank

train, test = tierank.make_ranking(90, n_features=8, mean_length=20, max_length=40).split(0.6, 0.4)
theirs = lightgbm.LGBMRanker(n_estimators=30, n_jobs=1, verbose=-1)
theirs.fit(np.array(train.features), train.ratings.astype(int), group=train.lengths)

# Clicks are worth 1, purchases (rating 3 and 4) 10; queries without either count as 0.
shop = dataclasses.replace(tierank.RULES["letor"], name="shop", gain={0: 0, 1: 1, 2: 1, 3: 10, 4: 10})
with tempfile.TemporaryDirectory() as folder:
    file = Path(folder, "lightgbm.scores")  # a number per line, in the order of the rows: any tool can write it
    tierank.write_scores(theirs.predict(np.array(test.features)), file)
    scores = {
        "LightGBM": tierank.read_scores(file, test),
        "uMart": tierank.UMart(n_trees=30, n_jobs=1).fit(train).predict(test),
    }
print(tierank.compare(test, scores, baseline="LightGBM", metrics=["ndcg@5", "precision@3"], rule=shop))
