fn main() -> Result<(), Box<dyn std::error::Error>> {
    rocmify::build_script::rocmify(&rocmify::nn_rules::CANDLE_NN)
}
