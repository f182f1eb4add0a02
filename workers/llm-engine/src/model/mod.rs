//! Decoders: configurations, weights, layers, attention over pages of the cache.
