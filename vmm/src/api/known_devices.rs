//! Requests of the known API about what is not there yet: read and checked like all others, and
//! then refused by name.

use tine_guest_agent::fields::FieldError;

use super::fault::{Fault, Reply};
use super::known::{any_object, check_id};
use super::routes::Call;

fn missing(what: &str) -> Reply {
    Err(Fault::bad_request(format_args!(
        "{what} is not supported by this version"
    )))
}

pub async fn put_interface(call: Call) -> Reply {
    check_id("iface_id", &call.id)?;
    any_object(&call.body)?;
    missing("a network interface")
}

pub async fn patch_interface(call: Call) -> Reply {
    check_id("iface_id", &call.id)?;
    any_object(&call.body)?;
    missing("a network interface")
}

pub async fn balloon(_call: Call) -> Reply {
    missing("a balloon")
}

pub async fn put_balloon(call: Call) -> Reply {
    let mut fields = call.fields()?;
    let _: u32 = fields.required("amount_mib")?;
    let _: bool = fields.required("deflate_on_oom")?;
    let _: Option<u16> = fields.optional("stats_polling_interval_s")?;
    let _: Option<bool> = fields.optional("free_page_hinting")?;
    let _: Option<bool> = fields.optional("free_page_reporting")?;
    fields.finish()?;
    missing("a balloon")
}

pub async fn patch_balloon(call: Call) -> Reply {
    let mut fields = call.fields()?;
    let _: u32 = fields.required("amount_mib")?;
    fields.finish()?;
    missing("a balloon")
}

pub async fn patch_statistics(call: Call) -> Reply {
    let mut fields = call.fields()?;
    let _: u16 = fields.required("stats_polling_interval_s")?;
    fields.finish()?;
    missing("a balloon")
}

pub async fn mmds(_call: Call) -> Reply {
    missing("the metadata store")
}

pub async fn put_mmds(call: Call) -> Reply {
    any_object(&call.body)?;
    missing("the metadata store")
}

pub async fn put_mmds_config(call: Call) -> Reply {
    let mut fields = call.fields()?;
    let version: Option<String> = fields.optional("version")?;
    if version.is_some_and(|version| version != "V1" && version != "V2") {
        return Err(FieldError::new("version", "must be V1 or V2").into());
    }
    let _: Vec<String> = fields.required("network_interfaces")?;
    let _: Option<std::net::Ipv4Addr> = fields.optional("ipv4_address")?;
    let _: Option<bool> = fields.optional("imds_compat")?;
    fields.finish()?;
    missing("the metadata store")
}

pub async fn create_snapshot(call: Call) -> Reply {
    let mut fields = call.fields()?;
    let _: String = fields.required("snapshot_path")?;
    let _: String = fields.required("mem_file_path")?;
    let kind: Option<String> = fields.optional("snapshot_type")?;
    fields.finish()?;
    match kind.as_deref() {
        None | Some("Full" | "Diff") => missing("a snapshot"),
        Some(_) => Err(FieldError::new("snapshot_type", "must be Full or Diff").into()),
    }
}

pub async fn load_snapshot(call: Call) -> Reply {
    let mut fields = call.fields()?;
    let _: String = fields.required("snapshot_path")?;
    missing("a snapshot")
}
