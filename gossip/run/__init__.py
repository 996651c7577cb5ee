"""The files of a run: who is where, what is written down, keys,
and what a scheduler says in the environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from . import (
        checkpoints as checkpoints,
        fitting as fitting,
        recorder as recorder,
        stage_parts as stage_parts,
        tolerance as tolerance,
    )
    from .completion import RunProgress as RunProgress, nobody_left as nobody_left, over as over
    from .journal import Journal as Journal, write_error as write_error
    from .keyring import Keyring as Keyring, allow_list as allow_list, listed_pair as listed_pair
    from .keys import (
        SWARM_KEY as SWARM_KEY,
        dump_pair as dump_pair,
        fingerprint as fingerprint,
        make_pair as make_pair,
        parse_pair as parse_pair,
        read_pair as read_pair,
        write_pair as write_pair,
    )
    from .machine import (
        NodeLife as NodeLife,
        NodeRecord as NodeRecord,
        node_in as node_in,
        this_machine as this_machine,
    )
    from .model_parts import join_parts as join_parts
    from .recorder import Header as Header, Step as Step
    from .records import (
        ROOM_HINT as ROOM_HINT,
        Appender as Appender,
        WriteFailures as WriteFailures,
        in_words as in_words,
    )
    from .rendezvous import (
        FILE_BYTES_MAX as FILE_BYTES_MAX,
        Announcement as Announcement,
        Seed as Seed,
        SeedFolder as SeedFolder,
        announce_end as announce_end,
        answers as answers,
        claim as claim,
        claims_in as claims_in,
        peers_in as peers_in,
        read_seed as read_seed,
        take_claim as take_claim,
        write_seed as write_seed,
    )
    from .resuming import newest_saved as newest_saved, settled_resume as settled_resume
    from .rotation import segments as segments
    from .rows import (
        PEERS_MAX as PEERS_MAX,
        ROUNDS_END as ROUNDS_END,
        Row as Row,
        check_row as check_row,
    )
    from .scheduler_env import (
        Task as Task,
        make as make,
        meet as meet,
        number as number,
        own_address as own_address,
        settled as settled,
        slurm_task as slurm_task,
        torchrun_task as torchrun_task,
        write_settings as write_settings,
    )
    from .stacks import (
        STACKS_SIGNAL as STACKS_SIGNAL,
        STACKS_VARIABLE as STACKS_VARIABLE,
        dump_stacks_on_signal as dump_stacks_on_signal,
    )
    from .stage_parts import OTHERS as OTHERS, SavedStage as SavedStage
    from .telemetry import (
        JsonLines as JsonLines,
        Logbook as Logbook,
        code_version as code_version,
        environment as environment,
        read_json as read_json,
        read_lines as read_lines,
        tell_on_stderr as tell_on_stderr,
        to_json as to_json,
        unpacked as unpacked,
        write_json as write_json,
    )
    from .trackers import (
        TRACKERS as TRACKERS,
        check_trackers as check_trackers,
        start_tracker as start_tracker,
        tracker_log as tracker_log,
        trackers_asked_for as trackers_asked_for,
    )
    from .untrusted import (
        RECORD_BYTES_MAX as RECORD_BYTES_MAX,
        TEXT_MAX as TEXT_MAX,
        last_rows as last_rows,
        object_in as object_in,
        open_file as open_file,
        open_in as open_in,
        owner_of as owner_of,
        parse_json as parse_json,
        read_at_most as read_at_most,
        read_file as read_file,
        read_object as read_object,
        real as real,
        shown as shown,
        shown_line as shown_line,
        shown_lines as shown_lines,
        text_of as text_of,
        whole as whole,
    )
else:
    __getattr__, __dir__ = lazy(__name__)
