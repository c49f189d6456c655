//! `/balloon`: the memory balloon.

use tine_devices::virtio::balloon::BalloonConfig;
use tine_guest_agent::fields::{FieldError, Fields};

use super::{BadSettings, MachineSettings};

/// Takes the fields of a request.
pub fn balloon(mut fields: Fields) -> Result<BalloonConfig, FieldError> {
    let balloon = BalloonConfig {
        amount_mib: fields.required("amount_mib")?,
        deflate_on_oom: fields.required("deflate_on_oom")?,
        stats_polling_interval_s: fields
            .optional("stats_polling_interval_s")?
            .unwrap_or_default(),
        free_page_reporting: fields.optional("free_page_reporting")?.unwrap_or_default(),
        free_page_hinting: fields.optional("free_page_hinting")?.unwrap_or_default(),
    };
    fields.finish()?;
    Ok(balloon)
}

/// A machine cannot give away more than it has.
pub(super) fn fits(
    balloon: Option<&BalloonConfig>,
    machine: &MachineSettings,
) -> Result<(), BadSettings> {
    let amount = balloon.map_or(0, |balloon| u64::from(balloon.amount_mib));
    match amount <= machine.mem_size_mib {
        true => Ok(()),
        false => Err(BadSettings::new(format_args!(
            "field `amount_mib`: a balloon of {amount} MiB is larger than the machine's {} MiB",
            machine.mem_size_mib
        ))),
    }
}
