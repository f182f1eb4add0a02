//! Images and masks: conversion to tensors, and rejection of malicious files.
use candle_core::{Device, Tensor};
use image::{DynamicImage, ImageFormat, Rgb, RgbImage, Rgba, RgbaImage};
use sd_worker::picture::{Limits, Mask, Picture};

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn encoded(
    picture: impl Into<DynamicImage>,
    format: ImageFormat,
) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let mut file = std::io::Cursor::new(Vec::new());
    picture.into().write_to(&mut file, format)?;
    Ok(file.into_inner())
}

fn gradient() -> RgbImage {
    RgbImage::from_fn(20, 12, |x, y| Rgb([x as u8 * 12, y as u8 * 20, 128]))
}

#[test]
fn files_are_decoded_and_encoded() -> Outcome {
    let pixels = gradient();
    for format in [ImageFormat::Png, ImageFormat::WebP, ImageFormat::Jpeg] {
        let picture = Picture::decode(&encoded(pixels.clone(), format)?, Limits::default())?;
        assert_eq!((picture.width(), picture.height()), (20, 12));
        // JPEG is lossy.
        let bound = if format == ImageFormat::Jpeg { 24 } else { 0 };
        let far = picture.rgb().iter().zip(pixels.as_raw()).map(|(a, b)| a.abs_diff(*b)).max();
        assert!(far.is_some_and(|far| far <= bound), "{format:?}: {far:?}");
        assert_eq!(Picture::decode(&picture.png()?, Limits::default())?, picture);
    }
    Ok(())
}

#[test]
fn tensors_are_channels_first_and_preserve_values() -> Outcome {
    let rgb: Vec<u8> = (0..=255).flat_map(|v| [v, 255 - v, v / 2]).collect();
    let picture = Picture::new(16, 16, rgb)?;
    let x = picture.to_tensor(&Device::Cpu)?;
    assert_eq!(x.dims(), [1, 3, 16, 16]);
    let at = |c: usize, y: usize, x_: usize| -> candle_core::Result<f32> {
        x.get(0)?.get(c)?.get(y)?.get(x_)?.to_scalar()
    };
    assert_eq!((at(0, 0, 0)?, at(1, 0, 0)?), (-1.0, 1.0));
    assert!((at(0, 15, 14)? - (254.0 / 127.5 - 1.0)).abs() < 1e-6);
    let two = Tensor::cat(&[&x, &(&x * -1.0)?], 0)?;
    let back = Picture::from_tensor(&two)?;
    assert_eq!(back[0], picture);
    assert!(back[1].rgb().iter().zip(picture.rgb()).all(|(a, b)| u16::from(*a) + u16::from(*b) == 255));
    let outside = Picture::from_tensor(&(x * 9.0)?)?;
    assert_eq!(outside[0].rgb()[..2], [0, 255]);
    let nan = Tensor::full(f32::NAN, (1, 3, 2, 2), &Device::Cpu)?;
    assert!(Picture::from_tensor(&nan).is_err_and(|e| e.to_string().contains("NaN")));
    assert!(
        Picture::from_tensor(&Tensor::zeros((1, 4, 2, 2), candle_core::DType::F32, &Device::Cpu)?).is_err()
    );
    Ok(())
}

#[test]
fn masks_use_transparency_or_brightness() -> Outcome {
    let light = RgbImage::from_fn(4, 2, |x, _| if x < 2 { Rgb([250; 3]) } else { Rgb([5; 3]) });
    let mask = Mask::decode(&encoded(light, ImageFormat::Png)?, Limits::default())?;
    assert_eq!(mask.inpaint(), [true, true, false, false, true, true, false, false]);
    let clear = RgbaImage::from_fn(4, 1, |x, _| Rgba([255, 255, 255, if x == 1 { 0 } else { 255 }]));
    let mask = Mask::decode(&encoded(clear, ImageFormat::Png)?, Limits::default())?;
    assert_eq!(mask.inpaint(), [false, true, false, false]);
    assert!(Mask::new(2, 2, vec![true; 3]).is_err() && Mask::new(0, 2, vec![]).is_err());
    assert!(Picture::new(2, 2, vec![0; 11]).is_err() && Picture::new(usize::MAX, 2, vec![0; 6]).is_err());
    Ok(())
}

/// Returns a PNG whose header has a different size than its data.
fn png_with_size(width: u32, height: u32) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let mut file = encoded(gradient(), ImageFormat::Png)?;
    file[16..20].copy_from_slice(&width.to_be_bytes());
    file[20..24].copy_from_slice(&height.to_be_bytes());
    let mut crc = u32::MAX;
    for byte in &file[12..29] {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
        }
    }
    file[29..33].copy_from_slice(&(!crc).to_be_bytes());
    Ok(file)
}

#[test]
fn bombs_and_unsupported_files_are_rejected() -> Outcome {
    assert!(
        Picture::decode(&png_with_size(20, 12)?, Limits::default()).is_ok(),
        "the modified header is well-formed"
    );
    let png = encoded(gradient(), ImageFormat::Png)?;
    let flat = encoded(RgbImage::new(5000, 5000), ImageFormat::Png)?;
    let small = Limits { bytes: 10, ..Limits::default() };
    let default = Limits::default();
    let cases: [(&str, &[u8], Limits); 11] = [
        ("100000 x 100000", &png_with_size(100_000, 100_000)?, default),
        ("8193 x 1", &png_with_size(8193, 1)?, default),
        ("8192 x 8192", &png_with_size(8192, 8192)?, default),
        ("5000 x 5000", &flat, default),
        ("cannot decode", &png_with_size(20, 4000)?, default),
        ("exceeds the limit of 10", &png, small),
        ("cannot decode", &png[..png.len() / 2], default),
        ("cannot decode", &png[..20], default),
        ("expected PNG, JPEG or WebP", b"GIF89a\x01\x00\x01\x00", default),
        ("expected PNG, JPEG or WebP", b"", default),
        ("expected PNG, JPEG or WebP", b"<svg></svg>", default),
    ];
    for (named, bytes, limits) in cases {
        for error in [Picture::decode(bytes, limits).err(), Mask::decode(bytes, limits).err()] {
            let error = error.ok_or(named)?.to_string();
            assert!(error.contains(named), "{named}: {error}");
        }
    }
    Ok(())
}
