//! The page as it is sent.
use crate::fixture::worker;
use crate::shared::check_page;

#[tokio::test]
async fn the_page_may_load_nothing_from_elsewhere() {
    check_page(&worker(), "function ready_words").await;
}
