"""Training that goes on where it was interrupted, to the same model, bit for bit."""

import tempfile
from pathlib import Path

import numpy as np

import tierank

train, valid, test = tierank.make_ranking(60, n_features=8, mean_length=20, max_length=40).split(0.5, 0.25, 0.25)
settings = {"n_trees": 120, "bagging_fraction": 0.7, "bagging_freq": 1, "patience": 200, "n_jobs": 1}
rounds_left = 70


def loss(scores, batch):
    """The uRank loss, and Ctrl-C after 70 rounds."""
    global rounds_left
    rounds_left -= 1
    if rounds_left == 0:
        raise KeyboardInterrupt
    return tierank.LOSSES["urank"](scores, batch)


with tempfile.TemporaryDirectory() as folder:
    checkpoint = Path(folder, "checkpoint")
    try:
        tierank.TreeRanker(loss, **settings).fit(train, valid=valid, checkpoint=checkpoint)
    except KeyboardInterrupt:
        print("stopped; the checkpoint holds", sorted(file.name for file in checkpoint.iterdir()))
    resumed = tierank.TreeRanker(loss, **settings).fit(train, valid=valid, checkpoint=checkpoint)

whole = tierank.TreeRanker(loss, **settings).fit(train, valid=valid)
print("same bits as without the stop:", np.array_equal(resumed.predict(test), whole.predict(test)))
