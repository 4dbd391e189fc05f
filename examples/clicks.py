"""From a click log to ratings, and what another ranker would have earned; users are simulated, the truth is known."""

import numpy as np

import tierank
from tierank import clicks

# A shop with 50 queries. Two rankers have shown their lists, each session one of them.
data = tierank.make_ranking(50, n_features=5, mean_length=15, max_length=20)
truth = data.restore(data.ratings)
rng = np.random.default_rng(0)
rankers = {name: 0.5 * truth + rng.normal(size=data.n_documents) for name in ("old", "new")}
log, users = clicks.simulate_clicks(data, rankers, n_sessions=20_000, position_bias=1.0, noise=0.1)
print(log.describe())

# Which click model predicts sessions best that it has not seen?
train, test = log.split(0.8, 0.2)
for name in clicks.CLICK_MODELS:
    print(f"{name:8} perplexity {clicks.make_model(name).fit(train).perplexity(test).mean():.4f}")

# How likely is a document looked at in each position? The true values are 1, 1/2, 1/3, ...
propensities = clicks.estimate_propensities(log, "harvest", n_bootstrap=50)
print(propensities)

# Ratings from clicks, next to the naive ones: clicks per time shown.
judged = clicks.judgements(train, "pbm")
shown = np.bincount(train.column("row"), minlength=data.n_documents)
clicked = np.bincount(train.column("row"), train.clicked, minlength=data.n_documents)
scores = {"click-through": clicked / np.maximum(shown, 1), "judgements": np.zeros(data.n_documents)}
scores["judgements"][judged.document] = judged.rating
print(tierank.compare(data, scores, metrics=["ndcg@5", "ndcg@10"]))

# To train a ranker, rate documents with their features: where clicks say little, similar documents say more.
trees = {"n_trees": 30, "n_leaves": 7, "min_documents": 5}
scores["trees by judgements"] = tierank.LambdaMART(**trees).fit(judged.rate(data)).predict(data)

# Or learn from the clicks themselves, each divided by its propensity; trees can also learn propensities on their own.
lists = clicks.training_data(train, data)
scores["naive trees"] = tierank.LambdaMART(**trees).fit(lists.replace(position=None)).predict(data)
scores["corrected trees"] = tierank.LambdaMART(**trees).fit(lists, propensity=propensities).predict(data)
learned = tierank.LambdaMART(**trees).fit(lists)
print("learned:", learned.propensities_["clicked"].round(2))
shown = ("naive trees", "corrected trees", "trees by judgements")
print(tierank.compare(data, {name: scores[name] for name in shown}, metrics=["ndcg@10"]))

# What would a ranker by these ratings have earned? On other sessions than those that it learned from.
print(clicks.evaluate_ranking(test, scores["judgements"], propensities, data=data, method="dr", clip=10))

# Worth a try online? So many sessions show a preference of 52% by interleaving; an A/B test needs many more.
print(f"interleaving: {clicks.interleaving_sample_size(share=0.52, ties=0.5):,} sessions")
clicking = 1 - log.describe().share_without_clicks
print(f"A/B test: {2 * clicks.ab_sample_size(base=clicking, lift=0.02):,} sessions")
