//! What `tine-vmm` says of its options.

/// What `--help` prints.
pub const HELP: &str = "\
One machine and its API socket

Usage: tine-vmm [OPTIONS]

Options:
      --api-sock PATH           Where the API's socket is made [default: /run/tine.socket]
      --id ID                   The machine's id [default: anonymous-instance]
      --run-dir DIR             Directory for the machine's records: usage and deletion
                                [default: none are kept]
      --config-file FILE        Configure the machine from a JSON file, and start it
      --no-api                  Serve no API: with --config-file
      --ready-fd NUMBER         Descriptor that a newline is written to when the socket can be
                                connected to; it is closed then, unless it is 0, 1 or 2
      --args-fd NUMBER          Descriptor that further options are read from, up to its end, when
                                all has been done that needs none of them; --ready-fd is told of
                                that moment by a newline too. Each word ends with a zero byte, and
                                without any the process ends
      --metadata FILE           JSON file to fill the metadata store with
      --mmds-size-limit BYTES   Most bytes of the metadata store [default: 51200]
      --boot-timer              Write to the log when the guest says that it has booted
      --log-path PATH           File or FIFO for the log
                                [default: standard output, once a level is given]
      --level LEVEL             What is logged: Off, Error, Warning, Info, Debug, Trace
      --show-level              Lines of the log say their level
      --metrics-path PATH       File or FIFO for metrics, as by `PUT /metrics`
      --seccomp MODE            What is done about system calls: `filter` ends the process at one
                                that no thread needs, `trace` tells the supervisor who is there
                                then, `off` does nothing [default: filter]
      --no-seccomp              The same as --seccomp off
      --http-api-max-payload-size BYTES
                                Most bytes of an API request's body [default: 1048576]
      --start-time-us MICROSECONDS
                                When this process was started, of the monotonic clock: the start's
                                time becomes a metric
      --start-time-cpu-us MICROSECONDS
                                Processor time that this process had used by then
      --parent-cpu-time-us MICROSECONDS
                                Processor time of its parent, which counts too
      --snapshot-version        Print the version of the snapshots that are written, and end
      --describe-snapshot FILE  Print the version of a snapshot's file of state, and end
  -h, --help                    Print this help, and end
  -V, --version                 Print the version, and end
";

/// What clients of the known API may ask for and cannot have. They are told so by name, with what
/// to do about it.
pub(super) const REFUSED: [(&str, &str); 4] = [
    (
        "enable-pci",
        "devices are on virtio-mmio, and there is no PCI bus; leave it out",
    ),
    (
        "seccomp-filter",
        "filters of the caller's are not supported; leave it out",
    ),
    (
        "show-log-origin",
        "places in the source are not logged; leave it out",
    ),
    (
        "module",
        "the log is not divided into modules; leave it out",
    ),
];
