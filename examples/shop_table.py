"""A shop's CSV with texts, dates and weights: fit, save, and the top ten in another process."""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

import tierank

rng = np.random.default_rng(0)
n = 3000
shop = pd.DataFrame(
    {
        "query": rng.choice([f"search {k}" for k in range(150)], n),
        "document": [f"product {k}" for k in range(n)],
        "brand": rng.choice(["acme", "globex", "initech", ""], n),
        "seller": [f"seller {k}" for k in rng.integers(0, 400, n)],
        "listed": (np.datetime64("2024-01-01") + rng.integers(0, 400, n)).astype(str),
        "price": rng.gamma(2, 20, n).round(2),
        "row_weight": rng.choice([0.5, 1.0], n),
    }
)
skill = dict(zip(shop["seller"].unique(), rng.normal(size=shop["seller"].nunique()), strict=True))
worth = (shop["brand"] == "acme") + shop["seller"].map(skill) - shop["price"] / 80 + rng.normal(0, 0.3, n)
shop["rating"] = np.digitize(worth, [0, 0.8, 1.5])

with tempfile.TemporaryDirectory() as folder:
    past, today, model = (Path(folder) / name for name in ("past.csv", "today.csv", "model"))
    shop.to_csv(past, index=False)
    shop.drop(columns=["rating", "row_weight"]).to_csv(today, index=False)

    data = tierank.read(past, columns=tierank.Columns(dates=["listed"]))
    train, valid, test = data.split(0.6, 0.2, 0.2)
    ranker = tierank.UMart(n_trees=100, n_jobs=1).fit(train, valid=valid)
    print("what the model makes of columns:", {name: kind.NAME for name, kind in ranker.seen_.columns.kinds.items()})
    print(tierank.evaluate(test, ranker.predict(test), "ndcg@10"))
    ranker.save(model)

    # Another process, which knows nothing but the model and the file.
    top = Path(folder) / "top.csv"
    command = [sys.executable, "-m", "tierank", "predict", model, today, "--k", "10", "--out", top]
    subprocess.run(command, check=True)
    print(pd.read_csv(top).head(10).to_string(index=False))
