"""Files of a run (addresses, records, checkpoints, keys), and the environment that a scheduler
sets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossip.lazy import lazy

if TYPE_CHECKING:
    from . import (
        checkpoints,
        fitting,
        stage_parts,
        tolerance,
    )
    from .completion import RunProgress, nobody_left, over
    from .journal import Journal
    from .keyring import Keyring, allow_list, listed_pair
    from .keys import (
        SWARM_KEY,
        dump_pair,
        fingerprint,
        make_pair,
        parse_pair,
        read_pair,
        write_pair,
    )
    from .machine import (
        NodeLife,
        NodeRecord,
        ProcessRecord,
        node_in,
        started_at,
        this_machine,
    )
    from .model_parts import join_parts
    from .records import (
        ROOM_HINT,
        Appender,
        WriteFailures,
        in_words,
    )
    from .rendezvous import (
        FILE_BYTES_MAX,
        Announcement,
        Seed,
        SeedFolder,
        announce_end,
        answers,
        claim,
        claims_in,
        create_claim,
        peers_in,
        read_seed,
        write_seed,
    )
    from .resuming import newest_saved, settled_resume
    from .rotation import segments
    from .scheduler_env import (
        Task,
        make,
        meet,
        number,
        own_address,
        settled,
        slurm_task,
        torchrun_task,
        write_settings,
    )
    from .stacks import (
        STACKS_SIGNAL,
        STACKS_VARIABLE,
        dump_stacks_on_signal,
    )
    from .stage_parts import OTHERS, Cut, SavedStage
    from .telemetry import (
        JsonLines,
        Logbook,
        code_version,
        environment,
        print_write_failure,
        read_json,
        read_lines,
        to_json,
        unpacked,
        write_error,
        write_json,
    )
    from .trackers import (
        TRACKERS,
        check_trackers,
        start_tracker,
        tracker_log,
        trackers_asked_for,
    )
    from .untrusted import (
        RECORD_BYTES_MAX,
        TEXT_MAX,
        last_events,
        object_in,
        open_file,
        open_in,
        owner_of,
        parse_json,
        read_at_most,
        read_file,
        read_object,
        real,
        shown,
        shown_line,
        shown_lines,
        text_of,
        whole,
    )
else:
    __getattr__, __dir__ = lazy(__name__)
