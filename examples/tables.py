"""Tables in and out: named columns, query ids that are texts, rows in any order."""

import numpy as np
import pandas as pd

import tierank

rng = np.random.default_rng(0)
shop = pd.DataFrame(
    {
        "search": rng.choice(["red shoes", "blue shoes", "rain coat", "umbrella"], 400),
        "product": [f"product {k}" for k in range(400)],
        "price": rng.gamma(2, 20, 400),
        "match": rng.random(400),
        "reviews": rng.poisson(3, 400),
    }
)
shop["rating"] = np.digitize(shop["match"] + shop["reviews"] / 10 + rng.normal(0, 0.2, 400), [0.8, 1.1, 1.4])

features = shop[["price", "match", "reviews"]]
ranker = tierank.UMart(n_trees=40, n_jobs=1).fit(features, shop["rating"], qid=shop["search"])
print("what counts:", dict(zip(ranker.feature_names_in_, ranker.feature_importances_.round(2).tolist(), strict=True)))

best = pd.DataFrame(ranker.rank(features, qid=shop["search"], k=2)._asdict())
best["product"] = shop["product"].to_numpy()[best["row"]]
print(best[["query", "rank", "product", "score"]].to_string(index=False))
