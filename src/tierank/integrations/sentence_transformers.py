"""Losses of tierank for text models that sentence-transformers trains, on lists with graded ratings.

CrossEncoderLoss    for ``CrossEncoderTrainer``: one model reads a query and a document together
BiEncoderLoss       for ``SentenceTransformerTrainer``: the score is the cosine of two vectors

>>> from sentence_transformers import CrossEncoder, CrossEncoderTrainer               # doctest: +SKIP
>>> from tierank.integrations.sentence_transformers import CrossEncoderLoss           # doctest: +SKIP
>>> CrossEncoderTrainer(model, train_dataset=data, loss=CrossEncoderLoss(model)).train()  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from tierank.errors import DataError, ParameterError
from tierank.losses import LOSSES


class _ListLoss(nn.Module):
    """A loss of ``LOSSES`` for scores that a text model gives."""

    def __init__(self, model: nn.Module, loss: str, **settings: Any) -> None:
        super().__init__()
        if loss not in LOSSES:
            raise ParameterError.unknown("loss", loss, LOSSES)
        self.model, self.loss, self.settings = model, loss, settings

    def get_config_dict(self) -> dict[str, Any]:
        """The settings, for the card of the model."""
        return {"loss": self.loss, **self.settings}


class CrossEncoderLoss(_ListLoss):
    """A ranking loss for a cross-encoder: the same columns as sentence-transformers' ``ListNetLoss``.

    The first column has queries, the second a list of documents for each, and ``labels`` their ratings. Lists may have
    any lengths; nothing is padded.

    Parameters
    ----------
    model : CrossEncoder
        The model, with one output.
    loss : str, default "urank"
        A key of ``tierank.losses.LOSSES``.
    mini_batch_size : int, optional
        Pairs that the model reads at a time, to save memory; all at once by default.
    **settings
        Settings of the loss.
    """

    def __init__(
        self, model: nn.Module, loss: str = "urank", *, mini_batch_size: int | None = None, **settings: Any
    ) -> None:
        super().__init__(model, loss, **settings)
        self.mini_batch_size = mini_batch_size

    def forward(self, inputs: Any, labels: Any, prompt: str | None = None, task: str | None = None) -> Tensor:
        """The mean loss over the queries.

        Parameters
        ----------
        inputs : list
            The queries, and a list of documents for each.
        labels : list of tensor
            The ratings of these documents.
        prompt, task : str, optional
            What the trainer passes to the model.

        Returns
        -------
        tensor
            A single number.
        """
        queries, documents = inputs
        lengths, rated = [len(one) for one in documents], [len(one) for one in labels]
        if lengths != rated:
            raise DataError(argument="labels", expected=f"{lengths} ratings of documents", got=f"{rated}")
        pairs = [(query, text) for query, texts in zip(queries, documents, strict=True) for text in texts]
        model: Any = self.model
        size, scores = self.mini_batch_size or len(pairs), []
        for first in range(0, len(pairs), size):
            tokens = model.preprocess(pairs[first : first + size], prompt=prompt, task=task)
            on_device = {key: one.to(model.device) if isinstance(one, Tensor) else one for key, one in tokens.items()}
            scores.append(model(on_device)["scores"].view(-1))
        ratings = torch.cat([torch.as_tensor(one, dtype=torch.float64) for one in labels]).cpu()
        qid = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
        loss: Tensor = LOSSES[self.loss](torch.cat(scores).float(), ratings, qid=qid, **self.settings)
        return loss


class BiEncoderLoss(_ListLoss):
    """A ranking loss for a bi-encoder, whose score is the cosine of the vectors of query and document times ``scale``.

    The first column has queries, the others a document each, and ``labels`` the list of their ratings; below 0 or NaN
    where a list is shorter.

    Parameters
    ----------
    model : SentenceTransformer
        The model.
    loss : str, default "urank"
        A key of ``tierank.losses.LOSSES``.
    scale : float, default 20.0
        What the cosine is multiplied by.
    **settings
        Settings of the loss.
    """

    def __init__(self, model: nn.Module, loss: str = "urank", *, scale: float = 20.0, **settings: Any) -> None:
        super().__init__(model, loss, **settings)
        self.scale = scale

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor) -> Tensor:
        """The mean loss over the queries.

        Parameters
        ----------
        sentence_features : list of dict of str to tensor
            The tokens of the queries, and of each column of documents.
        labels : tensor
            Queries x documents.

        Returns
        -------
        tensor
            A single number.
        """
        queries, *documents = [self.model(tokens)["sentence_embedding"] for tokens in sentence_features]
        if labels.shape != (len(queries), len(documents)):
            expected = f"{len(queries)} x {len(documents)} ratings"
            raise DataError(argument="labels", expected=expected, got=f"shape {tuple(labels.shape)}")
        columns = [torch.cosine_similarity(queries, one) for one in documents]
        scores, ratings = self.scale * torch.stack(columns, dim=1).float(), labels.double().cpu()
        is_there = ratings >= 0  # False for NaN
        kept = torch.where(is_there, ratings, 0.0)
        loss: Tensor = LOSSES[self.loss](scores, kept, mask=is_there, **self.settings)
        return loss

    def get_config_dict(self) -> dict[str, Any]:
        """The settings, for the card of the model."""
        return {**super().get_config_dict(), "scale": self.scale}
