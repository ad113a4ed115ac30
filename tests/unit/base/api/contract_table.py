"""The wire contract as the specification's tables have it, transcribed by hand.

Never fill these tables from our own descriptors: they are what the descriptors are checked against. `BASE` is
shared with other implementations (wire.md §1 to §6); `OURS` is the registry of our additions (wire.md §13).

A line at the margin names a subject, each indented line states a fact about it:
    file     syntax, package, imports
    message  number, name, type, then the oneof it belongs to; or number and `reserved`
    enum     number, name
    service  method, request -> response; the full method name is /service/method
Messages and enums are named as seen from their package. `optional` is explicit presence.
"""

BASE = """
file bigfleet/v1alpha1/capacity.proto
  syntax proto3
  package bigfleet.v1alpha1

message ClusterCapacityNeeds
  1 cluster_id string
  2 timestamp_unix_nanos int64
  3 needs repeated CapacityNeed

message CapacityNeed
  1 requirements repeated NodeSelectorRequirement
  2 aggregate_resources map<string,string>
  3 priority int32
  4 reserved
  5 spread repeated TopologySpread
  6 interruption_penalty_bucket PenaltyBucket
  7 reclamation_penalty_bucket PenaltyBucket
  8 min_unit map<string,string>
  9 group string

message NodeSelectorRequirement
  1 key string
  2 operator NodeSelectorRequirement.Operator
  3 values repeated string

enum NodeSelectorRequirement.Operator
  0 OPERATOR_UNSPECIFIED
  1 OPERATOR_IN
  2 OPERATOR_NOT_IN
  3 OPERATOR_EXISTS
  4 OPERATOR_DOES_NOT_EXIST
  5 OPERATOR_SAME

message TopologySpread
  1 topology_key string
  2 max_skew int32
  3 when_unsatisfiable TopologySpread.WhenUnsatisfiable

enum TopologySpread.WhenUnsatisfiable
  0 WHEN_UNSATISFIABLE_UNSPECIFIED
  1 WHEN_UNSATISFIABLE_DO_NOT_SCHEDULE
  2 WHEN_UNSATISFIABLE_SCHEDULE_ANYWAY

enum PenaltyBucket
  0 PENALTY_BUCKET_UNSPECIFIED
  1 PENALTY_BUCKET_ZERO
  2 PENALTY_BUCKET_HALF_DOLLAR
  3 PENALTY_BUCKET_1
  4 PENALTY_BUCKET_2
  5 PENALTY_BUCKET_4
  6 PENALTY_BUCKET_8
  7 PENALTY_BUCKET_16
  8 PENALTY_BUCKET_32
  9 PENALTY_BUCKET_64
  10 PENALTY_BUCKET_128
  11 PENALTY_BUCKET_256
  12 PENALTY_BUCKET_512
  13 PENALTY_BUCKET_1024
  14 PENALTY_BUCKET_2048
  15 PENALTY_BUCKET_4096
  16 PENALTY_BUCKET_8192
  17 PENALTY_BUCKET_16384
  18 PENALTY_BUCKET_32768
  19 PENALTY_BUCKET_65536
  20 PENALTY_BUCKET_131072
  21 PENALTY_BUCKET_262144
  22 PENALTY_BUCKET_524288
  23 PENALTY_BUCKET_1048576
  24 PENALTY_BUCKET_2097152
  25 PENALTY_BUCKET_4194304
  26 PENALTY_BUCKET_8388608
  27 PENALTY_BUCKET_PINNED


file bigfleet/v1alpha1/provider.proto
  syntax proto3
  package bigfleet.v1alpha1

service bigfleet.v1alpha1.CapacityProvider
  Create CreateRequest -> TransitionAck
  Configure ConfigureRequest -> TransitionAck
  Drain DrainRequest -> TransitionAck
  Delete DeleteRequest -> TransitionAck
  Get MachineRef -> Machine
  List ListFilter -> MachineList

enum MachineState
  0 MACHINE_STATE_UNSPECIFIED
  1 MACHINE_STATE_SPECULATIVE
  2 MACHINE_STATE_CREATING
  3 MACHINE_STATE_IDLE
  4 MACHINE_STATE_CONFIGURING
  5 MACHINE_STATE_CONFIGURED
  6 MACHINE_STATE_DRAINING
  7 MACHINE_STATE_DELETING
  8 MACHINE_STATE_FAILED

enum CapacityType
  0 CAPACITY_TYPE_UNSPECIFIED
  1 CAPACITY_TYPE_BARE_METAL
  2 CAPACITY_TYPE_RESERVED
  3 CAPACITY_TYPE_ON_DEMAND
  4 CAPACITY_TYPE_SPOT

message HostRef
  1 provider string
  2 ref string

message Resources
  1 resources map<string,string>

message MachineRef
  1 id string

message Machine
  1 id string
  2 state MachineState
  3 host HostRef
  4 instance_type string
  5 zone string
  6 capacity_type CapacityType
  7 price_per_hour double
  8 interruption_probability double
  9 resources Resources
  10 labels map<string,string>
  11 reserved
  12 last_error string
  13 allocatable Resources
  14 cluster string
  15 shard_metadata map<string,string>

message CreateRequest
  1 machine_id string
  2 reserved
  3 shard_id string
  4 shard_epoch int64
  5 sequence_number int64

message ConfigureRequest
  1 machine_id string
  2 cluster_id string
  3 bootstrap_blob bytes
  4 shard_id string
  5 shard_epoch int64
  6 sequence_number int64
  7 shard_metadata map<string,string>

message DrainRequest
  1 machine_id string
  2 grace_period_seconds int64
  3 shard_id string
  4 shard_epoch int64
  5 sequence_number int64

message DeleteRequest
  1 machine_id string
  2 shard_id string
  3 shard_epoch int64
  4 sequence_number int64

message TransitionAck
  1 operation_id string
  2 machine Machine

message ListFilter
  1 states repeated MachineState
  2 reserved
  3 reserved
  4 max_results int32
  5 since_revision bytes

message MachineList
  1 machines repeated Machine
  2 revision bytes


file bigfleet/v1alpha1/shard.proto
  syntax proto3
  package bigfleet.v1alpha1
  import bigfleet/v1alpha1/capacity.proto
  import bigfleet/v1alpha1/provider.proto

service bigfleet.v1alpha1.Shard
  Session stream OperatorMessage -> stream ShardMessage

message OperatorMessage
  1 hello Hello oneof payload
  2 rollup ClusterCapacityNeeds oneof payload
  3 bootstrap_response BootstrapBlobResponse oneof payload
  4 reclaim_ack ReclaimAck oneof payload

message ShardMessage
  1 ack Acknowledgement oneof payload
  2 bootstrap_request BootstrapRequest oneof payload
  3 reclaim_instruction ReclaimInstruction oneof payload
  4 node_state_update NodeStateUpdate oneof payload
  5 available_capacity AvailableCapacityUpdate oneof payload

message Hello
  1 cluster_id string
  2 reserved
  3 protocol_version string

message Acknowledgement
  1 echo string
  2 coordinator_term int64
  3 shard_epoch int64

message BootstrapRequest
  1 request_id string
  2 requirements repeated NodeSelectorRequirement
  3 cluster_id string

message BootstrapBlobResponse
  1 request_id string
  2 user_data bytes
  3 ttl_seconds int64
  4 error string

message ReclaimInstruction
  1 instruction_id string
  2 nodes repeated string
  3 grace_period_seconds int64
  4 preemptor_priority int32

message ReclaimAck
  1 instruction_id string
  2 nodes_started int32

message NodeStateUpdate
  1 supersedes_key string
  2 machine_id string
  3 cluster_id string
  4 state MachineState
  5 node_name string
  6 provider_id string
  7 reserved
  8 last_error string
  9 labels map<string,string>
  10 resources Resources
  11 taints repeated Taint

message Taint
  1 key string
  2 value string
  3 effect string

message AvailableCapacityUpdate
  1 supersedes_key string
  2 requirements repeated NodeSelectorRequirement
  3 resources Resources
  4 available_count int32
  5 confidence AvailableCapacityUpdate.Confidence
  6 cost_per_hour double
  7 reserved
  8 reserved
  9 reserved

enum AvailableCapacityUpdate.Confidence
  0 CONFIDENCE_UNSPECIFIED
  1 CONFIDENCE_NONE
  2 CONFIDENCE_LOW
  3 CONFIDENCE_MEDIUM
  4 CONFIDENCE_HIGH


file bigfleet/v1alpha1/coordinator.proto
  syntax proto3
  package bigfleet.v1alpha1
  import bigfleet/v1alpha1/capacity.proto
  import bigfleet/v1alpha1/provider.proto

service bigfleet.v1alpha1.Coordinator
  ReportShard ShardReport -> ReportAck
  AssignDomain AssignDomainRequest -> AssignDomainResponse
  UnassignDomain UnassignDomainRequest -> UnassignDomainResponse
  RemoveShard RemoveShardRequest -> RemoveShardResponse
  ListShards ListShardsRequest -> ListShardsResponse
  ListDomainAssignments ListDomainAssignmentsRequest -> ListDomainAssignmentsResponse
  ListQuotas ListQuotasRequest -> ListQuotasResponse
  ListProviders ListProvidersRequest -> ListProvidersResponse
  ListShardReports ListShardReportsRequest -> ListShardReportsResponse
  JoinRaftCluster JoinRaftClusterRequest -> JoinRaftClusterResponse
  SnapshotSave SnapshotSaveRequest -> stream SnapshotSaveChunk

message ShardReport
  1 shard_id string
  2 cycle int64
  3 timestamp_unix_nanos int64
  4 shard_epoch int64
  5 summary ShardSummary
  6 shortfalls repeated Shortfall
  7 instruction_acks repeated InstructAck
  8 shard_address string

message ShardSummary
  1 total_machines int32
  2 free_machines int32
  3 per_instance_type_counts map<string,int32>
  4 per_zone_counts map<string,int32>
  5 reserved
  6 reserved
  7 provider_address string

message Shortfall
  1 requirements repeated NodeSelectorRequirement
  2 deficit Resources
  3 priority int32
  4 reserved
  5 age_cycles int32
  6 interruption_penalty_bucket PenaltyBucket

message ReportAck
  1 coordinator_term int64
  2 acknowledged bool
  3 instructions repeated CoordinatorInstruction

message CoordinatorInstruction
  1 coordinator_term int64
  2 sequence_number int64
  3 instruction_id string
  4 assign_domain AssignDomain oneof payload
  5 unassign_domain UnassignDomain oneof payload
  6 reassign_speculative ReassignSpeculative oneof payload
  7 cross_shard_drain CrossShardDrain oneof payload
  8 transfer_ownership TransferOwnership oneof payload

message AssignDomain
  1 topology_key string
  2 topology_value string

message UnassignDomain
  1 topology_key string
  2 topology_value string

message ReassignSpeculative
  1 machine_ids repeated string

message CrossShardDrain
  1 machine_ids repeated string
  2 preemptor_priority int32

message TransferOwnership
  1 machine_ids repeated string
  2 from_shard_id string
  3 to_shard_id string

message InstructAck
  1 instruction_id string
  2 outcome InstructAck.Outcome
  3 reason string

enum InstructAck.Outcome
  0 OUTCOME_UNSPECIFIED
  1 OUTCOME_ACCEPTED
  2 OUTCOME_REJECTED_STALE
  3 OUTCOME_REJECTED_INVALID
  4 OUTCOME_FAILED

message AssignDomainRequest
  1 topology_key string
  2 topology_value string
  3 shard_id string

message AssignDomainResponse

message UnassignDomainRequest
  1 topology_key string
  2 topology_value string

message UnassignDomainResponse

message RemoveShardRequest
  1 shard_id string

message RemoveShardResponse

message ListShardsRequest

message ListShardsResponse
  1 shards repeated ShardRegistryEntry

message ShardRegistryEntry
  1 shard_id string
  2 address string
  3 registered_at_unix_ns int64
  4 last_heartbeat_unix_ns int64

message ListDomainAssignmentsRequest

message ListDomainAssignmentsResponse
  1 assignments repeated DomainAssignment

message DomainAssignment
  1 topology_key string
  2 topology_value string
  3 shard_id string

message ListQuotasRequest

message ListQuotasResponse
  1 allocations repeated QuotaAllocation

message QuotaAllocation
  1 provider string
  2 region string
  3 per_shard map<string,int32>

message ListProvidersRequest

message ListProvidersResponse
  1 providers repeated ProviderEntry

message ProviderEntry
  1 name string
  2 address string
  3 region string

message ListShardReportsRequest
  1 shard_id string

message ListShardReportsResponse
  1 reports repeated ShardReportSnapshot

message ShardReportSnapshot
  1 shard_id string
  2 cycle int64
  3 received_at_unix_ns int64
  4 summary ShardSummary
  5 shortfalls repeated Shortfall

message JoinRaftClusterRequest
  1 node_id string
  2 raft_address string

message JoinRaftClusterResponse

message SnapshotSaveRequest

message SnapshotSaveChunk
  1 meta_json bytes oneof payload
  2 data bytes oneof payload


file bigfleet/v1alpha1/shardread.proto
  syntax proto3
  package bigfleet.v1alpha1
  import bigfleet/v1alpha1/capacity.proto
  import bigfleet/v1alpha1/provider.proto

service bigfleet.v1alpha1.ShardRead
  InspectNeeds InspectNeedsRequest -> stream InspectNeedsResponse

message InspectNeedsRequest
  1 cluster_id string
  2 limit int32

message InspectNeedsResponse
  1 header InspectNeedsHeader oneof frame
  2 need NeedView oneof frame

message InspectNeedsHeader
  1 cycle int64
  2 computed_at_unix_nanos int64
  3 total_needs int32

message MatchingSupply
  1 idle int32
  2 configured int32
  3 speculative int32
  4 capped bool

message PreemptionSummary
  1 victims_found int32
  2 capacity_freed Resources

message DomainCoverage
  1 domain string
  2 coverage_per_mille int32
  3 satisfiable bool

message NeedView
  1 need CapacityNeed
  2 cluster_id string
  3 arrival_unix_nanos int64
  4 profile_fingerprint string
  5 satisfied bool
  6 residual_deficit Resources
  7 claimed_machine_count int32
  8 bootstrap_count int32
  9 provision_count int32
  10 same_domain string
  11 same_satisfiable bool
  12 acquisition_parked bool
  13 parked_age_cycles int32
  14 age_cycles_unmet int32
  15 unmet_reason UnmetReason
  16 matching_supply MatchingSupply
  17 preemption PreemptionSummary
  18 same_candidates repeated DomainCoverage

enum UnmetReason
  0 UNMET_REASON_UNSPECIFIED
  1 UNMET_REASON_PRIORITY_STARVED
  2 UNMET_REASON_NO_MATCHING_SUPPLY
  3 UNMET_REASON_TOPOLOGY_UNSATISFIABLE
  4 UNMET_REASON_PREEMPTION_EXHAUSTED
"""

# `pools`, `assignments` and `actuation` of the registry have no table yet: they come with their first user.
OURS = """
file bigfleet/v1alpha1/provider.proto

message MachineList
  1003 removed_ids repeated string
  1004 full optional bool

message CreateRequest
  1006 shard_metadata map<string,string>

message DrainRequest
  1006 shard_metadata map<string,string>


file bigfleet/v1alpha1/shard.proto

message OperatorMessage
  1001 node_readiness NodeReadiness oneof payload

message NodeReadiness
  1 machine_id string
  2 node_name string
  3 ready bool
  4 observed_unix_nanos int64

message Acknowledgement
  1004 rollup_timestamp_unix_nanos optional int64

message BootstrapRequest
  1004 machine_id optional string
  1005 labels map<string,string>


file bigfleet/v1alpha1/coordinator.proto

message ShardReport
  1009 cluster_ids repeated string
  1010 applied_assignment_generation optional int64
  1011 observed_coordinator_term optional int64

message Shortfall
  1007 topology_constrained optional bool

message InstructAck
  1004 machine_ids repeated string

message ReassignSpeculative
  1001 selector MachineSelector

message CrossShardDrain
  1001 selector MachineSelector
  1002 requester_interruption_penalty_bucket PenaltyBucket

message TransferOwnership
  1001 selector MachineSelector

message MachineSelector
  1 count int32
  2 instance_type string
  3 zone string


file bigfleet/v1alpha1/shardread.proto

message NeedView
  1001 unmet_detail string


file bigfleet/ext/v1alpha1/providerinfo.proto
  syntax proto3
  package bigfleet.ext.v1alpha1

service bigfleet.ext.v1alpha1.ProviderInfo
  Describe DescribeRequest -> DescribeResponse

message DescribeRequest

message DescribeResponse
  1 name string
  2 version string
  3 delete bool
  4 cursor bool
  5 tombstones bool
  6 fault_hooks bool
  7 max_metadata_keys int32
  8 max_metadata_bytes int64
  9 max_blob_bytes int64
  10 timeout_seconds map<string,double>
  11 epoch_floor bool
"""


def rows(table: str) -> set[str]:
    """One row per fact, as `subject: fact`; that a subject stands in a file is a fact too."""
    found = set()
    file = subject = ""
    for line in filter(None, table.splitlines()):
        text = " ".join(line.split())
        if line.startswith(" "):
            found.add(f"{subject}: {text}")
            continue
        subject = text
        if text.startswith("file "):
            file = text
        else:
            found.add(f"{subject}: in {file}")
    return found
