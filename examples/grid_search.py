"""Choose settings by scikit-learn's search: whole queries in each fold, our metric as the score."""

import numpy as np
import sklearn
from sklearn.model_selection import GridSearchCV

import tierank

sklearn.set_config(enable_metadata_routing=True)  # so that query ids reach the ranker, the folds and the scorer

data = tierank.make_ranking(60, n_features=8, mean_length=20, max_length=40)
X, y, qid = data.features, data.ratings, np.repeat(data.query_ids, data.lengths)

search = GridSearchCV(
    tierank.UMart(n_trees=30, n_jobs=1),
    {"n_leaves": [4, 16], "window": [1, 2, None]},
    scoring=tierank.scorer("ndcg@10"),
    cv=tierank.QueryKFold(3),
).fit(X, y, qid=qid)

print("best settings:", search.best_params_)
print(f"their mean NDCG@10 over three folds: {search.best_score_:.4f}")
