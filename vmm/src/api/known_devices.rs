//! The known API's devices that have handles of their own at run time: network interfaces, the
//! balloon, the metadata store.

use serde_json::{Value, json};
use tine_devices::mmds::MmdsError;
use tine_devices::virtio::balloon::{BalloonError, BalloonHandle};
use tine_guest_agent::fields::FieldError;

use super::fault::{Fault, Reply, done, json};
use super::known::{any_object, check_id};
use super::routes::Call;
use crate::control::settings::{self, Change, Interface, InterfacePatch};
use crate::control::{Access, Refusal};

fn access(call: &Call) -> Result<Access, Fault> {
    let access = call.app.handle.status().access;
    access.ok_or_else(|| Refusal::BeforeStart.into())
}

pub async fn put_interface(call: Call) -> Reply {
    check_id("iface_id", &call.id)?;
    let interface = Interface::from_fields(&call.id, call.fields()?)?;
    let change = Change::Interface(interface);
    call.app.handle.configure(change).await?;
    done()
}

pub async fn patch_interface(call: Call) -> Reply {
    check_id("iface_id", &call.id)?;
    let patch = InterfacePatch::from_fields(&call.id, call.fields()?)?;
    let access = access(&call)?;
    let named = |(id, _): &&(String, _)| *id == patch.iface_id;
    let Some((_, handle)) = access.interfaces.iter().find(named) else {
        let id = &patch.iface_id;
        return Err(Fault::bad_request(format_args!(
            "there is no interface {id:?}"
        )));
    };
    if let Some(limits) = &patch.rx_rate_limiter {
        handle.rx_limiter().set(limits);
    }
    if let Some(limits) = &patch.tx_rate_limiter {
        handle.tx_limiter().set(limits);
    }
    done()
}

pub async fn put_balloon(call: Call) -> Reply {
    let balloon = settings::balloon(call.fields()?)?;
    let change = Change::Balloon(balloon);
    call.app.handle.configure(change).await?;
    done()
}

fn no_balloon() -> Fault {
    Fault::bad_request("the machine has no balloon")
}

fn refused(err: BalloonError) -> Fault {
    Fault::bad_request(err)
}

fn running_balloon(call: &Call) -> Result<BalloonHandle, Fault> {
    access(call)?.balloon.ok_or_else(no_balloon)
}

pub async fn balloon(call: Call) -> Reply {
    let status = call.app.handle.status();
    let running = status.access.and_then(|access| access.balloon);
    let config = match running {
        Some(balloon) => balloon.config(),
        None => status.settings.balloon.ok_or_else(no_balloon)?,
    };
    json(&config)
}

pub async fn patch_balloon(call: Call) -> Reply {
    let mut fields = call.fields()?;
    let amount: u32 = fields.required("amount_mib")?;
    fields.finish()?;
    let balloon = running_balloon(&call)?;
    let most = call.app.handle.status().settings.machine.mem_size_mib;
    if u64::from(amount) > most {
        let words = format!("is more than the machine's {most} MiB");
        return Err(FieldError::new("amount_mib", words).into());
    }
    balloon.set_target_mib(amount).map_err(refused)?;
    done()
}

pub async fn statistics(call: Call) -> Reply {
    let balloon = running_balloon(&call)?;
    let stats = balloon.stats().ok_or(BalloonError::NoStatistics);
    let mut answer = json!(stats.map_err(refused)?);
    let (target, actual) = (balloon.target_pages(), balloon.actual_pages());
    answer["target_pages"] = target.into();
    answer["actual_pages"] = actual.into();
    answer["target_mib"] = (target >> 8).into();
    answer["actual_mib"] = (actual >> 8).into();
    json(&answer)
}

pub async fn patch_statistics(call: Call) -> Reply {
    let mut fields = call.fields()?;
    let seconds: u16 = fields.required("stats_polling_interval_s")?;
    fields.finish()?;
    let balloon = running_balloon(&call)?;
    balloon
        .set_stats_polling_interval_s(seconds)
        .map_err(refused)?;
    done()
}

pub async fn start_hinting(call: Call) -> Reply {
    let mut fields = tine_guest_agent::fields::Fields::parse(&call.body)?;
    let acknowledge: Option<bool> = fields.optional("acknowledge_on_stop")?;
    fields.finish()?;
    let balloon = running_balloon(&call)?;
    balloon
        .start_hinting(acknowledge.unwrap_or(true))
        .map_err(refused)?;
    done()
}

pub async fn stop_hinting(call: Call) -> Reply {
    running_balloon(&call)?.stop_hinting().map_err(refused)?;
    done()
}

pub async fn hinting(call: Call) -> Reply {
    let status = running_balloon(&call)?.hinting_status().map_err(refused)?;
    json(&json!({ "host_cmd": status.host_cmd, "guest_cmd": status.guest_cmd }))
}

pub async fn mmds(call: Call) -> Reply {
    let document = call.app.handle.metadata().document();
    json(&document.unwrap_or_else(|| json!({})))
}

fn document(call: &Call) -> Result<Value, Fault> {
    any_object(&call.body)?;
    serde_json::from_slice(&call.body).map_err(Fault::bad_request)
}

fn stored(result: Result<(), MmdsError>) -> Reply {
    match result {
        Ok(()) => done(),
        Err(err @ MmdsError::TooLarge { .. }) => Err(Fault::new(413, "too_large", err)),
        Err(err) => Err(Fault::bad_request(err)),
    }
}

pub async fn put_mmds(call: Call) -> Reply {
    stored(call.app.handle.metadata().put(document(&call)?))
}

pub async fn patch_mmds(call: Call) -> Reply {
    stored(call.app.handle.metadata().patch(document(&call)?))
}

pub async fn put_mmds_config(call: Call) -> Reply {
    let settings = settings::MmdsSettings::from_fields(call.fields()?)?;
    let change = Change::Mmds(settings);
    call.app.handle.configure(change).await?;
    done()
}
