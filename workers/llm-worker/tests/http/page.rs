//! The chat page.
use crate::fixture::worker;
use crate::shared::check_page;

#[tokio::test]
async fn the_page_loads_nothing_from_other_origins() {
    check_page(&worker(), "function ready_words").await;
}
