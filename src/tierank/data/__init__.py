"""Data sets: ``RankingDataset``, columns and their types, texts, checks, and the mathematics of ratings."""
