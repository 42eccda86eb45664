"""The catalogue of models: published families, models on this disk, and pairs of them."""
