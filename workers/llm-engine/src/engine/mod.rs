//! The thread that owns the model, the handle to it, the scheduler and the blocks of the cache.
