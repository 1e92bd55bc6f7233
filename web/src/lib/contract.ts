/** What the HTTP API says (docs/api.md). Times are Unix seconds unless a name ends in `_ms` or `_s`. */

export interface Percentiles {
  p50: number;
  p99: number;
}

export interface Broker {
  id: string;
  up: boolean;
  lat?: number | null;
  lon?: number | null;
  version?: string;
  uptime_s?: number;
  connections?: number;
  sessions?: number;
  attached?: number;
  queued?: number;
  queued_bytes?: number;
  memory_bytes?: number;
  cpu?: number;
  journal?: string;
  role?: "single" | "leader";
  lag?: number;
  rates?: { received_per_s: number; delivered_per_s: number; handoffs_per_s: number };
  latency_ms?: Percentiles | null;
  handoff_ms?: Percentiles | null;
}

export interface Link {
  a: string;
  b: string;
  up: boolean;
  why?: string;
  kept_bytes?: number;
}

export interface Figures {
  owed?: number | null;
  delivered?: number | null;
  lost?: number | null;
  repeated?: number | null;
  given_up?: Record<string, number>;
  received_per_s?: number | null;
  delivered_per_s?: number | null;
  handoffs_per_s?: number | null;
  latency_ms?: Percentiles | null;
  handoff_ms?: Percentiles | null;
}

export interface Alert {
  level: "warning" | "error";
  kind: string;
  text: string;
  since: number;
}

export interface Network {
  served_by: string;
  time: number;
  brokers: Broker[];
  links: Link[];
  figures: Figures;
  alerts: Alert[];
}

export interface Client {
  id: string;
  broker: string | null;
  attached: boolean;
  queued: number;
  lat?: number | null;
  lon?: number | null;
  predicted?: string[];
  /** Only in replays: notifications that never reached the client. */
  lost?: number;
}

export interface Subscription {
  filter: string;
  qos?: number;
  selector?: string | null;
  group?: string | null;
}

export interface Move {
  at: number;
  from: string | null;
  to: string;
  duration_ms: number | null;
}

export interface ClientDetail extends Client {
  owner?: string | null;
  protocol?: string;
  subscriptions?: Subscription[];
  queued_bytes?: number;
  inflight?: number;
  expires_s?: number | null;
  moves?: Move[];
  text?: string[];
}

export interface Follower {
  connected: boolean;
  in_sync: boolean;
  lag: number;
}

export interface BrokerDetail extends Broker {
  configuration?: Record<string, unknown>;
  status?: Record<string, unknown> & { replication?: { followers: Record<string, Follower> } };
}

export interface Handoff {
  client: string;
  from: string;
  to: string;
  at: number;
  duration_ms: number;
  moved: number;
}

export interface Me {
  user: string | null;
  may_operate: boolean;
  login_needed: boolean;
  pseudonyms: boolean;
}

export type Action = "drain" | "kick" | "forget" | "promote";
