"""A pipeline: features scaled within each query, then trees. Query ids go to each step that asks for them."""

import numpy as np
import sklearn
from sklearn.model_selection import cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import tierank

sklearn.set_config(enable_metadata_routing=True)

data = tierank.make_ranking(60, n_features=8, mean_length=20, max_length=40)
X, y, qid = data.features, data.ratings, np.repeat(data.query_ids, data.lengths)

metrics = {"NDCG@10": tierank.scorer("ndcg@10"), "ERR@10": tierank.scorer("err@10")}
for scaler in (StandardScaler(), tierank.TRANSFORMS["query_minmax"]()):
    pipeline = make_pipeline(scaler, tierank.UMart(n_trees=30, n_jobs=1))
    found = cross_validate(pipeline, X, y, scoring=metrics, cv=tierank.QueryKFold(3), params={"qid": qid})
    print(scaler, *(f"{name} {found[f'test_{name}'].mean():.4f}" for name in metrics))
