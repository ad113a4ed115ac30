"""The metric catalogue as observability.md §1–§5 has it (provider series: provider.md §12.6; certificates:
deploy.md D-19), copied by hand. Nothing here may be computed from the catalogue under test.

A row is ``name type labels buckets``. Labels are separated by ``;``, their fixed values follow ``=`` and are
separated by ``,``; a label without values is open. ``CYCLE+25`` is the set with extra edges at 0.8, 1 and 1.25
times 25, for series whose gate the plain set would miss (the bucket rule of §1). ``exact`` marks the series that
keep a sketch.
"""

# ruff: noqa: E501  (the rows of a table stay on one line)

STATES = "Unspecified,Speculative,Creating,Idle,Configuring,Configured,Draining,Deleting,Failed"
REAL_STATES = "Speculative,Creating,Idle,Configuring,Configured,Draining,Deleting,Failed"
TRANSITIONAL = "Creating,Configuring,Draining,Deleting"
CAPACITY = "BareMetal,Reserved,OnDemand,Spot"
PENALTY = (
    "0,0.5,1,2,4,8,16,32,64,128,256,512,1024,2048,4096,8192,16384,32768,65536,131072,262144,524288,1048576,"
    "2097152,4194304,8388608,pinned"
)
KINDS = "Bootstrap,Provision,Reclaim,Preempt,Delete,Unspecified"
OUTCOMES = (
    "success,ctx_canceled,fenced,no_session,transition_raced_to_idle,transition_error,blob_error,"
    "provider_error,stale_state,inventory_miss,missing_profile,other,provider_transient,blob_expired,"
    "unsatisfiable"
)
CLASSES = "batch,service,critical,other"
FRAMES = "bootstrap,reclaim,node,available,ack"
VERBS = "Create,Configure,Drain,Delete,Get,List"
CODES = (
    "OK,CANCELLED,UNKNOWN,INVALID_ARGUMENT,DEADLINE_EXCEEDED,NOT_FOUND,ALREADY_EXISTS,PERMISSION_DENIED,"
    "RESOURCE_EXHAUSTED,FAILED_PRECONDITION,ABORTED,OUT_OF_RANGE,UNIMPLEMENTED,INTERNAL,UNAVAILABLE,DATA_LOSS,"
    "UNAUTHENTICATED"
)

SHARD = f"""
bigfleet_shard_cycle_duration_seconds              histogram - CYCLE+25+100 exact
bigfleet_shard_cycle_phase_duration_seconds        histogram phase=reconcile,snapread,phase1,phase2,phase3,emit,execute CYCLE exact:phase1
bigfleet_shard_cycle_trigger_total                 counter   cause=timer,rollup,deferred,drain
bigfleet_shard_last_cycle_timestamp_seconds        gauge     -
bigfleet_shard_needs_rows                          gauge     kind=plain,same
bigfleet_shard_phase1_per_need_seconds             gauge     -
bigfleet_shard_configure_phase_seconds             histogram - MACHINE+15 exact
bigfleet_shard_request_bootstrap_seconds           histogram - MACHINE exact
bigfleet_shard_drain_phase_seconds                 histogram - MACHINE exact
bigfleet_shard_provision_phase_seconds             histogram - MACHINE
bigfleet_shard_provisioning_latency_seconds        histogram - FANOUT
bigfleet_shard_inventory_machines                  gauge     state={STATES};capacity_type={CAPACITY};interruption_penalty_bucket={PENALTY}
bigfleet_shard_demand_machines                     gauge     interruption_penalty_bucket={PENALTY}
bigfleet_shard_demand_units                        gauge     priority_class={CLASSES}
bigfleet_shard_inventory_hourly_cost               gauge     state={STATES};capacity_type={CAPACITY}
bigfleet_shard_inventory_oldest_transition_seconds gauge     state={TRANSITIONAL}
bigfleet_shard_stuck_transitions                   gauge     state={TRANSITIONAL}
bigfleet_shard_shortfalls                          gauge     -
bigfleet_shard_shortfalls_by_priority              gauge     priority_class={CLASSES}
bigfleet_shard_shortfalls_aged                     gauge     bucket=1-9,10-59,60-299,300+
bigfleet_shard_shortfall_age_seconds               histogram - FANOUT
bigfleet_shard_actions_total                       counter   kind={KINDS}
bigfleet_shard_action_execute_outcomes_total       counter   kind={KINDS};outcome={OUTCOMES}
bigfleet_shard_actions_deferred_total              counter   reason=limit,settling,outbox,provider
bigfleet_shard_actions_dropped_total               counter   -
bigfleet_shard_actions_deduped_total               counter   -
bigfleet_shard_action_queue_depth                  gauge     -
bigfleet_shard_execute_inflight                    gauge     -
bigfleet_shard_audit_errors_total                  counter   -
bigfleet_shard_recording_errors_total              counter   -
bigfleet_shard_reclaims_capped_total               counter   -
bigfleet_shard_rollup_quarantined                  gauge     cluster
bigfleet_shard_actions_suppressed_total            counter   kind={KINDS}
bigfleet_shard_actuation_paused                    gauge     -
bigfleet_shard_actions_dryrun_total                counter   kind={KINDS}
bigfleet_shard_idle_releases_total                 counter   -
bigfleet_shard_machines_rejected_total             counter   reason=price,interruption_probability,structural,undecodable,duplicate_id
bigfleet_shard_rollups_rejected_total              counter   cluster
bigfleet_shard_active_sessions                     gauge     -
bigfleet_shard_unready_nodes                       gauge     -
bigfleet_shard_session_lifecycle_total             counter   event=installed,removed,replaced
bigfleet_shard_session_identity_rejected_total     counter   -
bigfleet_shard_outbox_frames                       gauge     class={FRAMES}
bigfleet_shard_outbox_dropped_total                counter   class={FRAMES}
bigfleet_shard_outbox_reissued_total               counter   class={FRAMES}
bigfleet_shard_outbox_superseded_total             counter   class={FRAMES}
bigfleet_shard_phase1_occ_proposals_total          counter   outcome=committed,conflict
bigfleet_shard_phase1_occ_displacements_total      counter   -
bigfleet_shard_phase1_occ_retries_exhausted_total  counter   -
bigfleet_shard_provider_rpc_seconds                histogram provider;rpc={VERBS};code={CODES} RPC
bigfleet_shard_provider_rejected_total             counter   provider
bigfleet_shard_provider_fenced_total               counter   provider
bigfleet_shard_provider_breaker_state              gauge     provider
bigfleet_shard_reconcile_age_seconds               gauge     provider
bigfleet_shard_reconcile_observed_jumps_total      counter   from={REAL_STATES};to={REAL_STATES}
bigfleet_shard_reconcile_removals_held             gauge     -
bigfleet_shard_provider_list_records               histogram mode=full,delta COUNT
bigfleet_shard_coordinator_reports_total           counter   outcome
bigfleet_shard_fenced                              gauge     -
bigfleet_shard_epoch                               gauge     -
bigfleet_shard_coordinator_term_seen               gauge     -
"""

COORDINATOR = """
bigfleet_coordinator_raft_term                      gauge     -
bigfleet_coordinator_apply_total                    counter   outcome=success,error,fsm_error
bigfleet_coordinator_pending_instructions           gauge     shard
bigfleet_coordinator_is_leader                      gauge     -
bigfleet_coordinator_lease_remaining_seconds        gauge     -
bigfleet_coordinator_leader_changes_total           counter   -
bigfleet_coordinator_election_seconds               histogram - RPC
bigfleet_coordinator_store_raft_term                gauge     -
bigfleet_coordinator_store_applied_lag              gauge     -
bigfleet_coordinator_store_db_bytes                 gauge     -
bigfleet_coordinator_store_db_in_use_bytes          gauge     -
bigfleet_coordinator_store_has_quorum               gauge     -
bigfleet_coordinator_apply_seconds                  histogram - RPC
bigfleet_coordinator_apply_batch_size               histogram - COUNT
bigfleet_coordinator_reports_total                  counter   outcome=ok,stale_cycle,stale_epoch,denied,not_leader
bigfleet_coordinator_shard_last_report_age_seconds  gauge     shard
bigfleet_coordinator_shards                         gauge     state
bigfleet_coordinator_domains                        gauge     state
bigfleet_coordinator_clusters                       gauge     state
bigfleet_coordinator_transfers                      gauge     state
bigfleet_coordinator_rebalance_pass_seconds         histogram - RPC
bigfleet_coordinator_rebalance_decisions_total      counter   tier=1,2,3;result
bigfleet_coordinator_instruction_outcomes_total     counter   kind;outcome
bigfleet_coordinator_cluster_binding_conflicts      gauge     -
bigfleet_coordinator_escalated_shortfalls           gauge     -
bigfleet_coordinator_identity_rejected_total        counter   rpc
bigfleet_coordinator_snapshot_export_age_seconds    gauge     -
bigfleet_coordinator_snapshot_export_failures_total counter   -
"""

OPERATOR = """
bigfleet_operator_rollup_duration_seconds              histogram - ROLLUP exact
bigfleet_operator_rollup_phase_duration_seconds        histogram phase=list,build,enqueue ROLLUP
bigfleet_operator_acknowledge_duration_seconds         histogram - MACHINE+12+30 exact
bigfleet_operator_acknowledged_total                   counter   -
bigfleet_operator_session_reconnects_total             counter   -
bigfleet_operator_outbox_dropped_total                 counter   -
bigfleet_operator_node_state_update_duration_seconds   histogram phase=Provisioning,Launched,Registered,Ready,Draining,Drained,Failed NODESTATE+5 exact
bigfleet_operator_upcoming_node_writes_total           counter   op=create,spec_update,status_update,delete;outcome=success,conflict,error,noop
bigfleet_operator_upcoming_node_op_duration_seconds    histogram op=get,create,get_refetch,spec_patch,status_patch,delete NODESTATE
bigfleet_operator_dispatch_inflight                    gauge     -
bigfleet_operator_session_connected                    gauge     -
bigfleet_operator_rollup_needs                         gauge     -
bigfleet_operator_rollup_bytes                         gauge     -
bigfleet_operator_rollup_skipped_total                 counter   reason=operator,quantity,requirement,spread,selector,overflow
bigfleet_operator_rollup_last_acked_timestamp_seconds  gauge     -
bigfleet_operator_cache_staleness_seconds              gauge     -
bigfleet_operator_capacity_requests                    gauge     phase
bigfleet_operator_bootstrap_duration_seconds           histogram outcome RPC
bigfleet_operator_evictions_total                      counter   outcome=evicted,pdb_blocked,timeout,gone
bigfleet_operator_drains_inflight                      gauge     -
bigfleet_operator_drain_duration_seconds               histogram outcome=drained,failed,provider_finished,cancelled,abandoned MACHINE
bigfleet_operator_unready_delivered_nodes              gauge     -
bigfleet_operator_orphan_nodes                         gauge     -
"""

POD_CONTROLLER = """
bigfleet_unschedulable_pod_controller_reconciles_total           counter   outcome=cr_created,cr_exists,pod_gone,pod_terminal,error,pod_ignored,untranslatable
bigfleet_unschedulable_pod_controller_queue_depth                gauge     -
bigfleet_unschedulable_pod_controller_reconcile_duration_seconds histogram - RPC
bigfleet_unschedulable_pod_controller_untranslatable_pods        gauge     -
"""

PROVIDER = f"""
bigfleet_provider_rpc_total                        counter   provider;method={VERBS},Describe;code={CODES}
bigfleet_provider_rpc_seconds                      histogram provider;method={VERBS},Describe RPC
bigfleet_provider_transitions_total                counter   provider;kind=create,configure,drain,delete;outcome
bigfleet_provider_transition_seconds               histogram provider;kind=create,configure,drain,delete FANOUT
bigfleet_provider_inflight                         gauge     provider;kind=create,configure,drain,delete
bigfleet_provider_machines                         gauge     provider;state={STATES};capacity_type={CAPACITY}
bigfleet_provider_fenced_total                     counter   provider;shard
bigfleet_provider_idempotent_replays_total         counter   provider;kind=create,configure,drain,delete
bigfleet_provider_substrate_calls_total            counter   provider;op;outcome
bigfleet_provider_substrate_seconds                histogram provider;op MACHINE
bigfleet_provider_reconcile_total                  counter   provider;outcome
bigfleet_provider_reconcile_last_success_timestamp gauge     provider
bigfleet_provider_price_refresh_total              counter   provider;source;outcome
bigfleet_provider_price_last_success_timestamp     gauge     provider
bigfleet_provider_interruptions_total              counter   provider
bigfleet_provider_repairs_total                    counter   provider;outcome
bigfleet_provider_store_write_seconds              histogram provider RPC
bigfleet_provider_store_write_failures_total       counter   provider
bigfleet_provider_revision                         gauge     provider
bigfleet_provider_panics_total                     counter   provider
"""

HARNESS = """
scaletest_loadgen_cr_created_total                               counter   -
scaletest_loadgen_cr_deleted_total                               counter   -
scaletest_loadgen_cr_active                                      gauge     -
scaletest_loadgen_cr_target                                      gauge     -
scaletest_loadgen_errors_total                                   counter   kind
scaletest_loadgen_steady_state                                   gauge     -
scaletest_loadgen_phase_started_at_seconds                       gauge     phase
scaletest_loadgen_anchors_bound_total                            counter   -
bigfleet_scaletest_pod_bind_latency_seconds                      histogram - BIND+10+30 exact
bigfleet_scaletest_pod_bind_latency_steady_seconds               histogram - BIND+10+30 exact
bigfleet_scaletest_pod_bind_latency_steady_max_seconds           gauge     -
bigfleet_scaletest_node_creator_fake_nodes_created_total         counter   -
bigfleet_scaletest_node_creator_upcoming_to_node_latency_seconds histogram - MACHINE
bigfleet_scaletest_node_creator_bound_pods                       gauge     -
bigfleet_scaletest_operator_sim_streams                          gauge     -
bigfleet_scaletest_operator_sim_rollups_sent_total               counter   -
bigfleet_scaletest_operator_sim_rollups_acked_total              counter   -
bigfleet_scaletest_operator_sim_bootstraps_answered_total        counter   -
bigfleet_scaletest_operator_sim_write_delay_seconds              gauge     -
"""

PROCESS = """
bigfleet_process_tasks                            gauge -
bigfleet_tls_certificate_expiry_timestamp_seconds gauge role
"""

BUCKETS = {
    "CYCLE": (
        "0.001 0.002 0.004 0.008 0.016 0.032 0.048 0.064 0.096 0.128 0.192 0.256 0.384 0.512 0.768 1.024 1.536"
        " 2.048 3.072 4.096 6.144 8.192 16.384 32.768 65.536 131.072 262.144 524.288"
    ),
    "MACHINE": "0.01 0.02 0.04 0.08 0.16 0.32 0.64 1.28 2.56 5.12 10.24 20.48 40.96 81.92 163.84 327.68",
    "FANOUT": (
        "0.01 0.02 0.04 0.08 0.16 0.32 0.64 1.28 2.56 5.12 10.24 20.48 40.96 81.92 163.84 327.68 655.36 1310.72"
        " 2621.44 5242.88"
    ),
    "ROLLUP": ("0.001 0.0025 0.005 0.01 0.025 0.05 0.1 0.2 0.35 0.5 0.65 0.8 1 1.25 1.5 2 3 5 8 16 32"),
    "NODESTATE": (
        "0.001 0.002 0.004 0.008 0.016 0.032 0.064 0.128 0.256 0.512 0.75 1.024 1.25 1.5 1.75 2.048 4.096 8.192"
        " 16.384 32.768 65.536"
    ),
    "BIND": "0.1 0.2 0.4 0.8 1.6 3.2 6.4 12.8 25.6 51.2 102.4 204.8 409.6 819.2 1638.4 3276.8",
    "RPC": "0.001 0.002 0.004 0.008 0.016 0.032 0.064 0.128 0.256 0.512 1.024 2.048 4.096 8.192 16.384 32.768",
    # Ours: the specification names no set for numbers of things.
    "COUNT": "0 1 4 16 64 256 1024 4096 16384 65536 262144 1048576",
}

GATE_EDGES = {
    5: (4.0, 5.0, 6.25),
    10: (8.0, 10.0, 12.5),
    12: (9.6, 12.0, 15.0),
    15: (12.0, 15.0, 18.75),
    25: (20.0, 25.0, 31.25),
    30: (24.0, 30.0, 37.5),
    100: (80.0, 100.0, 125.0),
}

# Thresholds on histograms: scale.md §7 (the ladder and the development values) and observability.md §11.
THRESHOLDS = {
    "bigfleet_shard_cycle_duration_seconds": (1, 5, 25, 100),
    "bigfleet_shard_configure_phase_seconds": (15,),
    "bigfleet_operator_rollup_duration_seconds": (1, 2),
    "bigfleet_operator_acknowledge_duration_seconds": (12, 30),
    "bigfleet_operator_node_state_update_duration_seconds": (1.5, 5),
    "bigfleet_scaletest_pod_bind_latency_seconds": (10, 30),
    "bigfleet_scaletest_pod_bind_latency_steady_seconds": (10, 30),
}
