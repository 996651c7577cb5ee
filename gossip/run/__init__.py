"""The files of a run: who is where, what is written down, keys,
and what a scheduler says in the environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from . import checkpoints as checkpoints
    from . import fitting as fitting
    from . import recorder as recorder
    from . import stage_parts as stage_parts
    from . import tolerance as tolerance
    from .completion import RunProgress as RunProgress
    from .completion import nobody_left as nobody_left
    from .completion import over as over
    from .journal import Journal as Journal
    from .journal import write_error as write_error
    from .keyring import Keyring as Keyring
    from .keyring import allow_list as allow_list
    from .keyring import listed_pair as listed_pair
    from .keys import SWARM_KEY as SWARM_KEY
    from .keys import dump_pair as dump_pair
    from .keys import fingerprint as fingerprint
    from .keys import make_pair as make_pair
    from .keys import parse_pair as parse_pair
    from .keys import read_pair as read_pair
    from .keys import write_pair as write_pair
    from .machine import NodeLife as NodeLife
    from .machine import NodeRecord as NodeRecord
    from .machine import node_in as node_in
    from .machine import this_machine as this_machine
    from .model_parts import join_parts as join_parts
    from .recorder import Header as Header
    from .recorder import Step as Step
    from .records import ROOM_HINT as ROOM_HINT
    from .records import Appender as Appender
    from .records import WriteFailures as WriteFailures
    from .records import in_words as in_words
    from .rendezvous import FILE_BYTES_MAX as FILE_BYTES_MAX
    from .rendezvous import Announcement as Announcement
    from .rendezvous import Seed as Seed
    from .rendezvous import SeedFolder as SeedFolder
    from .rendezvous import announce_end as announce_end
    from .rendezvous import answers as answers
    from .rendezvous import claim as claim
    from .rendezvous import claims_in as claims_in
    from .rendezvous import peers_in as peers_in
    from .rendezvous import read_seed as read_seed
    from .rendezvous import take_claim as take_claim
    from .rendezvous import write_seed as write_seed
    from .resuming import newest_saved as newest_saved
    from .resuming import settled_resume as settled_resume
    from .rotation import segments as segments
    from .scheduler_env import Task as Task
    from .scheduler_env import make as make
    from .scheduler_env import meet as meet
    from .scheduler_env import number as number
    from .scheduler_env import own_address as own_address
    from .scheduler_env import settled as settled
    from .scheduler_env import slurm_task as slurm_task
    from .scheduler_env import torchrun_task as torchrun_task
    from .scheduler_env import write_settings as write_settings
    from .stacks import STACKS_SIGNAL as STACKS_SIGNAL
    from .stacks import STACKS_VARIABLE as STACKS_VARIABLE
    from .stacks import dump_stacks_on_signal as dump_stacks_on_signal
    from .stage_parts import OTHERS as OTHERS
    from .stage_parts import SavedStage as SavedStage
    from .telemetry import JsonLines as JsonLines
    from .telemetry import Logbook as Logbook
    from .telemetry import code_version as code_version
    from .telemetry import environment as environment
    from .telemetry import read_json as read_json
    from .telemetry import read_lines as read_lines
    from .telemetry import tell_on_stderr as tell_on_stderr
    from .telemetry import to_json as to_json
    from .telemetry import unpacked as unpacked
    from .telemetry import write_json as write_json
    from .trackers import TRACKERS as TRACKERS
    from .trackers import check_trackers as check_trackers
    from .trackers import start_tracker as start_tracker
    from .trackers import tracker_log as tracker_log
    from .trackers import trackers_asked_for as trackers_asked_for
    from .untrusted import RECORD_BYTES_MAX as RECORD_BYTES_MAX
    from .untrusted import TEXT_MAX as TEXT_MAX
    from .untrusted import last_rows as last_rows
    from .untrusted import object_in as object_in
    from .untrusted import open_file as open_file
    from .untrusted import open_in as open_in
    from .untrusted import owner_of as owner_of
    from .untrusted import parse_json as parse_json
    from .untrusted import read_at_most as read_at_most
    from .untrusted import read_object as read_object
    from .untrusted import real as real
    from .untrusted import shown as shown
    from .untrusted import shown_line as shown_line
    from .untrusted import shown_lines as shown_lines
    from .untrusted import text_of as text_of
    from .untrusted import whole as whole
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "checkpoints": ("checkpoints",),
            "completion": (
                "RunProgress",
                "nobody_left",
                "over",
            ),
            "fitting": ("fitting",),
            "journal": (
                "Journal",
                "write_error",
            ),
            "keyring": (
                "Keyring",
                "allow_list",
                "listed_pair",
            ),
            "keys": (
                "SWARM_KEY",
                "dump_pair",
                "fingerprint",
                "make_pair",
                "parse_pair",
                "read_pair",
                "write_pair",
            ),
            "machine": (
                "NodeLife",
                "NodeRecord",
                "node_in",
                "this_machine",
            ),
            "recorder": (
                "Header",
                "Step",
                "recorder",
            ),
            "model_parts": ("join_parts",),
            "records": (
                "Appender",
                "ROOM_HINT",
                "WriteFailures",
                "in_words",
            ),
            "rendezvous": (
                "Announcement",
                "FILE_BYTES_MAX",
                "Seed",
                "SeedFolder",
                "announce_end",
                "answers",
                "claim",
                "claims_in",
                "peers_in",
                "read_seed",
                "take_claim",
                "write_seed",
            ),
            "resuming": ("newest_saved", "settled_resume"),
            "rotation": ("segments",),
            "scheduler_env": (
                "Task",
                "make",
                "meet",
                "number",
                "own_address",
                "settled",
                "slurm_task",
                "torchrun_task",
                "write_settings",
            ),
            "stage_parts": (
                "OTHERS",
                "SavedStage",
                "stage_parts",
            ),
            "stacks": (
                "STACKS_SIGNAL",
                "STACKS_VARIABLE",
                "dump_stacks_on_signal",
            ),
            "telemetry": (
                "JsonLines",
                "Logbook",
                "code_version",
                "environment",
                "read_json",
                "read_lines",
                "tell_on_stderr",
                "to_json",
                "unpacked",
                "write_json",
            ),
            "tolerance": ("tolerance",),
            "trackers": (
                "TRACKERS",
                "check_trackers",
                "start_tracker",
                "tracker_log",
                "trackers_asked_for",
            ),
            "untrusted": (
                "RECORD_BYTES_MAX",
                "TEXT_MAX",
                "last_rows",
                "object_in",
                "open_file",
                "open_in",
                "owner_of",
                "parse_json",
                "read_at_most",
                "read_object",
                "real",
                "shown",
                "shown_line",
                "shown_lines",
                "text_of",
                "whole",
            ),
        },
    )
