//! The web page.
use crate::fixture::worker;
use crate::shared::check_page;

#[tokio::test]
async fn the_page_is_self_contained() {
    check_page(&worker(), "function ready_words").await;
}
