fn main() -> Result<(), Box<dyn std::error::Error>> {
    rocmify::build_script::rocmify(&rocmify::core_rules::CANDLE_CORE)
}
