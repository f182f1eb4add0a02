//! What the workers share: HTTP, jobs, streams, metrics, shutdown.
