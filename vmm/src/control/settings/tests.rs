//! What requests make of the settings, and what machine they describe.

use super::*;
use tine_guest_agent::fields::Fields;

fn fields(json: &str) -> Fields {
    Fields::parse(json.as_bytes()).unwrap()
}

fn drive(id: &str, root: bool, path: &std::path::Path) -> Drive {
    let json = format!(
        r#"{{"drive_id":{id:?},"is_root_device":{root},"path_on_host":{path:?},"is_read_only":true}}"#
    );
    Drive::from_fields(id, fields(&json)).unwrap()
}

#[test]
fn the_root_drive_is_the_first_one_whenever_it_comes() {
    let image = tempfile::NamedTempFile::new().unwrap();
    let mut settings = Settings::default();
    for (id, root) in [("a", false), ("b", false), ("r", true), ("b", false)] {
        let change = Change::Drive(drive(id, root, image.path()));
        settings.apply(change).unwrap();
    }
    let ids: Vec<_> = settings.drives.iter().map(|d| &*d.drive_id).collect();
    assert_eq!(ids, ["r", "a", "b"]);
    let second = settings.apply(Change::Drive(drive("b", true, image.path())));
    assert!(second.unwrap_err().0.contains("root drive already"));
}

#[test]
fn root_words_come_behind_the_callers_and_before_inits() {
    let mut source = BootSource {
        boot_args: Some("console=ttyS0 -- single".to_owned()),
        ..BootSource::default()
    };
    let root = Some("root=/dev/vda ro");
    assert_eq!(
        source.words(root),
        "console=ttyS0 root=/dev/vda ro -- single"
    );
    source.boot_args = Some("quiet".to_owned());
    assert_eq!(source.words(root), "quiet root=/dev/vda ro");
    assert_eq!(source.words(None), "quiet");
}

#[test]
fn only_a_guest_with_an_initrd_gets_the_agents_word_for_its_root() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut settings = Settings::default();
    settings
        .apply(Change::Drive(drive("r", true, file.path())))
        .unwrap();
    let mut source = BootSource {
        kernel_image_path: file.path().into(),
        ..BootSource::default()
    };
    settings.apply(Change::BootSource(source.clone())).unwrap();
    let config = settings.machine_config().unwrap();
    assert_eq!(config.root_drive, None);
    assert_eq!(config.cmdline.trim(), "root=/dev/vda ro");
    source.initrd_path = Some(file.path().into());
    settings.apply(Change::BootSource(source)).unwrap();
    assert_eq!(settings.machine_config().unwrap().root_drive, Some(0));
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let refused = |result: Result<(), tine_guest_agent::fields::FieldError>, name: &str| {
        assert_eq!(result.unwrap_err().field, name);
    };
    let machine = |json| MachineSettings::from_fields(fields(json)).map(drop);
    refused(
        machine(r#"{"vcpu_count":1,"mem_size_mib":128,"cpu_template":"T2"}"#),
        "cpu_template",
    );
    refused(
        machine(r#"{"vcpu_count":3,"mem_size_mbi":3906}"#),
        "mem_size_mbi",
    );
    refused(machine(r#"{"vcpu_count":3}"#), "mem_size_mib");
    refused(
        machine(r#"{"vcpu_count":300,"mem_size_mib":1}"#),
        "vcpu_count",
    );
    let drive = |json| Drive::from_fields("a", fields(json)).map(drop);
    refused(
        drive(r#"{"drive_id":"a","is_root_device":false,"socket":"/s"}"#),
        "socket",
    );
    refused(
        drive(r#"{"drive_id":"b","is_root_device":false,"path_on_host":"/x"}"#),
        "drive_id",
    );
    let serial = |json| Serial::from_fields(fields(json)).map(drop);
    refused(
        serial(r#"{"rate_limiter":{"size":1,"refill_time":1,"burst":1}}"#),
        "rate_limiter",
    );
}

#[test]
fn a_refused_change_changes_nothing() {
    let mut settings = Settings::default();
    let before = settings.clone();
    let patch = MachinePatch::from_fields(fields(r#"{"mem_size_mib":1}"#)).unwrap();
    assert!(settings.apply(Change::MachinePatch(patch)).is_err());
    let missing = BootSource {
        kernel_image_path: "/nowhere".into(),
        ..BootSource::default()
    };
    assert!(settings.apply(Change::BootSource(missing)).is_err());
    assert_eq!(settings, before);
}
