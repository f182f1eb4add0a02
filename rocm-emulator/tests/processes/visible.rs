//! Tests of HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES.
use crate::result;

/// Returns the architectures, PCI addresses and hipGetDeviceCount's code of a process that configures three devices.
fn devices(environment: &[(&str, &str)]) -> String {
    result("devices", environment)
}

#[test]
fn all_devices_are_visible_by_default() {
    assert_eq!(devices(&[]), "gfx1100@00 gfx1102@01 gfx90a@02 code 0");
}

#[test]
fn a_list_selects_and_orders_devices() {
    assert_eq!(devices(&[("HIP_VISIBLE_DEVICES", "2")]), "gfx90a@02 code 0");
    assert_eq!(devices(&[("HIP_VISIBLE_DEVICES", "2,0")]), "gfx90a@02 gfx1100@00 code 0");
    assert_eq!(devices(&[("ROCR_VISIBLE_DEVICES", "1,2"), ("HIP_VISIBLE_DEVICES", "1")]), "gfx90a@02 code 0");
}

#[test]
fn an_unknown_ordinal_ends_the_list() {
    assert_eq!(devices(&[("HIP_VISIBLE_DEVICES", "1,7,0")]), "gfx1102@01 code 0");
}

#[test]
fn an_empty_list_hides_all() {
    // hipErrorNoDevice.
    assert_eq!(devices(&[("HIP_VISIBLE_DEVICES", "")]), "code 100");
    assert_eq!(devices(&[("HIP_VISIBLE_DEVICES", "-1")]), "code 100");
}

#[test]
fn work_runs_on_the_visible_device() {
    let here = [("HIP_VISIBLE_DEVICES", "2,1")];
    assert_eq!(result("streams with an event", &here), "12");
}
