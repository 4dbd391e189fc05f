"""A loss of one's own, for a network and for trees: one function, (scores, batch) -> one value per query."""

import torch

import tierank


def top_one(scores, batch):
    """Minus the logarithm of the chance that a softmax picks a document of the highest tier."""

    def log_sums(chosen):
        held = torch.where(chosen, scores, -torch.inf)
        highest = torch.full((batch.n_queries,), -torch.inf).scatter_reduce(0, batch.query, held.detach(), "amax")
        powers = torch.exp(held - highest[batch.query])
        return highest + torch.zeros(batch.n_queries).index_add(0, batch.query, powers).log()

    return log_sums(torch.ones_like(batch.tiers, dtype=torch.bool)) - log_sums(batch.tiers == 0)


print(f"derivatives differ from differences by at most {tierank.check_gradient(top_one):.0e}")

train, valid, test = tierank.make_ranking(90, n_features=8, mean_length=20, max_length=40).split(0.5, 0.25, 0.25)
rankers = {
    "network": tierank.NetworkRanker(loss=top_one, max_epochs=20, n_jobs=1),
    "trees": tierank.TreeRanker(loss=top_one, n_trees=50, n_jobs=1),
    "trees, uRank loss": tierank.TreeRanker(loss="urank", n_trees=50, n_jobs=1),
}
scores = {name: ranker.fit(train, valid=valid).predict(test) for name, ranker in rankers.items()}
print(tierank.compare(test, scores, metrics=["ndcg@1", "ndcg@10"]))
