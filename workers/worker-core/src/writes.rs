//! Write timeout for connections whose client stops reading.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// A stream whose writes fail with [`io::ErrorKind::TimedOut`] once none has succeeded for the whole limit.
#[derive(Debug)]
pub(crate) struct WriteTimeout<S> {
    stream: S,
    limit: Option<Duration>,
    /// Called before the error is returned.
    on_timeout: fn(&S),
    /// Timer that runs while a write is waiting.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S: Unpin> WriteTimeout<S> {
    /// Wraps a stream; `None` sets no limit. `on_timeout` is called before a write fails.
    pub fn new(stream: S, limit: Option<Duration>, on_timeout: fn(&S)) -> Self {
        Self { stream, limit, on_timeout, waiting: None }
    }

    fn limited<T>(
        &mut self,
        context: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let written = write(Pin::new(&mut self.stream), context);
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let Some(limit) = self.limit else { return Poll::Pending };
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(limit)));
        waiting.as_mut().poll(context).map(|()| {
            (self.on_timeout)(&self.stream);
            let message = format!("the client read nothing for {} s (--write-timeout)", limit.as_secs());
            Err(io::Error::new(io::ErrorKind::TimedOut, message))
        })
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeout<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.limited(context, |stream, context| stream.poll_write(context, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.limited(context, |stream, context| stream.poll_write_vectored(context, slices))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.limited(context, AsyncWrite::poll_flush)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.limited(context, AsyncWrite::poll_shutdown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::Instant;

    /// The clock is paused, so that it advances only while all tasks wait.
    #[tokio::test(start_paused = true)]
    async fn a_write_fails_only_if_nothing_is_read_for_the_limit() {
        let limit = Duration::from_secs(60);
        let (client, server) = duplex(4);
        let mut server = WriteTimeout::new(server, Some(limit), |_| ());
        let reader = tokio::spawn(async move {
            let mut client = client;
            for _ in 0..3 {
                tokio::time::sleep(Duration::from_secs(50)).await;
                client.read_exact(&mut [0; 4]).await.unwrap();
            }
            client
        });
        let start = Instant::now();
        let error = server.write_all(&[0; 100]).await.unwrap_err();
        assert_eq!((error.kind(), start.elapsed().as_secs()), (io::ErrorKind::TimedOut, 150 + 60));
        assert!(error.to_string().contains("--write-timeout"), "{error}");
        drop(reader.await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_limit_a_write_waits() {
        let (_client, server) = duplex(4);
        let mut server = WriteTimeout::new(server, None, |_| ());
        let day = Duration::from_secs(86_400);
        assert!(tokio::time::timeout(day, server.write_all(&[0; 100])).await.is_err());
    }
}
