//! The command `rocmify`.

fn main() {
    let work_dir = std::env::temp_dir().join("rocmify");
    let names = ["candle-core", "candle-nn", "candle-kernels"];
    match rocmify::upstream::locate(&names, rocmify::upstream::VERSION, &work_dir) {
        Ok(dirs) => dirs.iter().for_each(|dir| println!("{}", dir.display())),
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
    }
}
