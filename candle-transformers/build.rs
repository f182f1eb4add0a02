fn main() -> Result<(), Box<dyn std::error::Error>> {
    rocmify::build_script::rocmify(&rocmify::transformers_rules::CANDLE_TRANSFORMERS)
}
