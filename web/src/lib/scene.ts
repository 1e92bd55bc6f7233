/** The picture of the network, on two canvases: what rarely changes below, handoffs in motion above. */

import { select } from "d3-selection";
import { zoom, zoomIdentity, type ZoomBehavior, type ZoomTransform } from "d3-zoom";
import type { Broker, Client } from "./contract";
import { asTrees, hasPosition, mercator, metresPerUnit, onEarth, seat, type Point } from "./layout";
import type { Model, Shown } from "./model.svelte";
import { bytes, count } from "./words";

const FRAME_MS = 1000 / 40;
const ARC_MS = 2_600;
const TRAVEL_MS = 700;
const BROKER_RADIUS = 9;
const HIT_RADIUS = 14;
const LABELS_MAX = 120;
/** What a link keeps between two acknowledgements is no news. */
const KEPT_SHOWN_BYTES = 1_000;
/** Coast lines are coarse: closer than this many metres per pixel they would mislead. */
const COAST_METRES_PER_PIXEL = 800;

/** How long a handoff took, in classes that can be told apart without seeing red from green. */
export const DURATIONS = [
  { below_ms: 50, name: "under 50 ms", colour: "--arc-1" },
  { below_ms: 250, name: "50 to 250 ms", colour: "--arc-2" },
  { below_ms: 1000, name: "250 ms to 1 s", colour: "--arc-3" },
  { below_ms: Infinity, name: "1 s or more", colour: "--arc-4" },
] as const;

export type Selection = { kind: "broker" | "client"; id: string } | null;

interface Box {
  left: number;
  top: number;
  right: number;
  bottom: number;
}

const COLOURS = [
  "ink", "quiet", "line", "surface", "map", "land", "accent", "ok", "warn", "bad", "client", "away", "halo",
  "arc-1", "arc-2", "arc-3", "arc-4",
] as const;
type Colours = Record<(typeof COLOURS)[number], string>;

export class Scene {
  selection: Selection = null;
  onSelect: (selection: Selection) => void = () => {};
  onHover: (text: string, x: number, y: number) => void = () => {};
  frames = 0;
  isOnEarth = false;

  private readonly below: CanvasRenderingContext2D;
  private readonly above: CanvasRenderingContext2D;
  private readonly zooming: ZoomBehavior<HTMLCanvasElement, unknown>;
  private transform: ZoomTransform = zoomIdentity;
  private width = 1;
  private height = 1;
  private ratio = 1;
  private places = new Map<string, Point>();
  private placesKey = "";
  private isFitted = true;
  private drawn = "";
  /** Where names are written: arcs leave them free. */
  private texts: Box[] = [];
  private at = new Map<string, Point>();
  private colours!: Colours;
  private land: Path2D | null = null;
  private isLandAsked = false;
  private request = 0;
  private last_ms = 0;
  private wantsTree = false;
  private readonly isCalm = window.matchMedia("(prefers-reduced-motion: reduce)");
  private readonly watcher: ResizeObserver;
  private readonly look: MutationObserver;

  constructor(
    private readonly model: Model,
    private readonly canvas: HTMLCanvasElement,
    overlay: HTMLCanvasElement,
  ) {
    this.below = canvas.getContext("2d")!;
    this.above = overlay.getContext("2d")!;
    this.zooming = zoom<HTMLCanvasElement, unknown>()
      .scaleExtent([0.2, 400])
      .filter((event: Event) => !(event as MouseEvent).button)
      .on("zoom", (event: { transform: ZoomTransform; sourceEvent: Event | null }) => {
        this.transform = event.transform;
        if (event.sourceEvent) this.isFitted = false;
        this.drawn = "";
      });
    const top = select(overlay).call(this.zooming as never).on("dblclick.zoom", null);
    top.on("click", (event: MouseEvent) => this.onSelect(this.hit(event.offsetX, event.offsetY)));
    top.on("pointermove", (event: PointerEvent) => this.point(event.offsetX, event.offsetY));
    top.on("pointerleave", () => this.onHover("", 0, 0));
    this.watcher = new ResizeObserver(() => this.resize(overlay));
    this.watcher.observe(canvas);
    this.look = new MutationObserver(() => this.readColours());
    this.look.observe(document.documentElement, { attributes: true });
    this.readColours();
    this.resize(overlay);
    this.request = requestAnimationFrame((now) => this.frame(now));
  }

  stop(): void {
    cancelAnimationFrame(this.request);
    this.watcher.disconnect();
    this.look.disconnect();
  }

  showTree(wantsTree: boolean): void {
    this.wantsTree = wantsTree;
    this.placesKey = "";
    this.isFitted = true;
  }

  /** Everything in view. */
  fit(): void {
    this.isFitted = true;
    this.moveToFit();
  }

  zoomBy(factor: number): void {
    this.isFitted = false;
    select(this.above.canvas as HTMLCanvasElement).call((one) => this.zooming.scaleBy(one as never, factor));
  }

  panBy(x: number, y: number): void {
    this.isFitted = false;
    const k = this.transform.k;
    select(this.above.canvas as HTMLCanvasElement).call((one) => this.zooming.translateBy(one as never, x / k, y / k));
  }

  /** Where a broker is on the screen, for tests and tools. */
  placeOf(broker: string): Point | undefined {
    const place = this.places.get(broker);
    return place && this.onScreen(place);
  }

  // --- one frame ---

  private frame(now: number): void {
    this.request = requestAnimationFrame((next) => this.frame(next));
    if (now - this.last_ms < FRAME_MS - 2) return;
    this.last_ms = now;
    this.frames += 1;
    this.arrange();
    const { x, y, k } = this.transform;
    const chosen = this.selection ? `${this.selection.kind} ${this.selection.id}` : "";
    const key = `${this.model.clientsVersion} ${this.model.time} ${x} ${y} ${k} ${this.width} ${this.height} ${chosen}`;
    if (key !== this.drawn) {
      this.drawn = key;
      this.drawBelow();
    }
    this.drawAbove(now);
  }

  private arrange(): void {
    const { brokers, links } = this.model;
    const key = brokers.map((one) => `${one.id} ${one.lat} ${one.lon}`).join() + links.map((one) => `${one.a}-${one.b}`).join();
    if (key === this.placesKey) return;
    this.placesKey = key;
    this.isOnEarth = !this.wantsTree && brokers.some(hasPosition);
    this.places = this.isOnEarth
      ? onEarth(brokers, this.model.neighbours)
      : asTrees(brokers.map((one) => one.id), this.model.neighbours);
    if (this.isOnEarth) void this.loadLand();
    if (this.isFitted) this.moveToFit();
    this.drawn = "";
  }

  private resize(overlay: HTMLCanvasElement): void {
    const box = this.canvas.getBoundingClientRect();
    this.width = Math.max(box.width, 1);
    this.height = Math.max(box.height, 1);
    this.ratio = Math.min(window.devicePixelRatio || 1, 2);
    for (const canvas of [this.canvas, overlay]) {
      canvas.width = Math.round(this.width * this.ratio);
      canvas.height = Math.round(this.height * this.ratio);
    }
    this.drawn = "";
    if (this.isFitted) this.moveToFit();
    // A canvas with a new size is empty: it is drawn before the browser shows it.
    this.drawBelow();
    this.drawAbove(performance.now());
  }

  private moveToFit(): void {
    const places = [...this.places.values()];
    if (!places.length) return;
    const xs = places.map((place) => place.x);
    const ys = places.map((place) => place.y);
    const [left, right, top, bottom] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
    const margin = Math.min(110, this.width / 8, this.height / 5);
    const least = this.isOnEarth ? 1e-5 : 1.2;
    const wide = Math.max(right - left, least);
    const high = Math.max(bottom - top, least / 2);
    const k = Math.min((this.width - 2 * margin) / wide, (this.height - 2 * margin) / high);
    const to = zoomIdentity
      .translate(this.width / 2 - (k * (left + right)) / 2, this.height / 2 - (k * (top + bottom)) / 2)
      .scale(k);
    this.zooming.scaleExtent([k / 8, k * 60]);
    select(this.above.canvas as HTMLCanvasElement).call((one) => this.zooming.transform(one as never, to));
  }

  private onScreen(place: Point): Point {
    const { x, y, k } = this.transform;
    return { x: x + k * place.x, y: y + k * place.y };
  }

  // --- what rarely changes ---

  private drawBelow(): void {
    const draw = this.below;
    draw.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    draw.fillStyle = this.colours.map;
    draw.fillRect(0, 0, this.width, this.height);
    if (this.isOnEarth) this.drawEarth(draw);
    const labels: Box[] = [];
    this.texts = [];
    this.drawLinks(draw);
    this.drawClients(draw);
    this.drawPredictions(draw);
    this.drawLinkLabels(draw, labels);
    this.drawBrokers(draw, labels);
    if (this.isOnEarth) this.drawScale(draw);
  }

  private drawEarth(draw: CanvasRenderingContext2D): void {
    const { x, y, k } = this.transform;
    const metres = metresPerUnit((this.height / 2 - y) / k) / k;
    if (this.land && metres > COAST_METRES_PER_PIXEL) {
      draw.save();
      draw.translate(x, y);
      draw.scale(k, k);
      draw.fillStyle = this.colours.land;
      draw.fill(this.land);
      draw.restore();
    }
    // A grid of degrees tells how far one has zoomed in, where there is nothing else to see.
    const degrees = [30, 10, 5, 2, 1, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001];
    const step = degrees.find((one) => (one / 360) * k < 160) ?? 0.001;
    draw.strokeStyle = this.colours.line;
    draw.lineWidth = 1;
    draw.beginPath();
    const firstLon = Math.ceil((((0 - x) / k) * 360 - 180) / step) * step;
    for (let lon = firstLon, n = 0; n < 60; lon += step, n += 1) {
      const at = Math.round(x + (k * (lon + 180)) / 360) + 0.5;
      if (at > this.width) break;
      draw.moveTo(at, 0);
      draw.lineTo(at, this.height);
    }
    const latOf = (py: number): number => (2 * Math.atan(Math.exp((0.5 - (py - y) / k) * 2 * Math.PI)) - Math.PI / 2) * (180 / Math.PI);
    for (let lat = Math.ceil(latOf(this.height) / step) * step, n = 0; n < 60; lat += step, n += 1) {
      const at = Math.round(y + k * mercator(lat, 0).y) + 0.5;
      if (at < 0 || lat > 85) break;
      draw.moveTo(0, at);
      draw.lineTo(this.width, at);
    }
    draw.globalAlpha = 0.6;
    draw.stroke();
    draw.globalAlpha = 1;
  }

  private drawScale(draw: CanvasRenderingContext2D): void {
    const { y, k } = this.transform;
    const metresPerPixel = metresPerUnit((this.height - 20 - y) / k) / k;
    const wanted = metresPerPixel * 110;
    const power = 10 ** Math.floor(Math.log10(wanted));
    const metres = [5, 2, 1].map((one) => one * power).find((one) => one <= wanted) ?? power;
    const wide = metres / metresPerPixel;
    const text = metres >= 1000 ? `${count(metres / 1000)} km` : `${count(metres)} m`;
    const [left, bottom] = [14, this.height - 14];
    draw.strokeStyle = this.colours.quiet;
    draw.lineWidth = 1.5;
    draw.beginPath();
    draw.moveTo(left, bottom - 5);
    draw.lineTo(left, bottom);
    draw.lineTo(left + wide, bottom);
    draw.lineTo(left + wide, bottom - 5);
    draw.stroke();
    draw.fillStyle = this.colours.quiet;
    draw.font = "11px system-ui, sans-serif";
    draw.textAlign = "left";
    draw.textBaseline = "bottom";
    draw.fillText(text, left + 4, bottom - 3);
  }

  private drawLinks(draw: CanvasRenderingContext2D): void {
    for (const link of this.model.links) {
      const [a, b] = [this.places.get(link.a), this.places.get(link.b)];
      if (!a || !b) continue;
      const [from, to] = [this.onScreen(a), this.onScreen(b)];
      draw.strokeStyle = link.up ? this.colours.quiet : this.colours.bad;
      draw.globalAlpha = link.up ? 0.55 : 1;
      draw.lineWidth = link.up ? 1.5 : 2;
      draw.setLineDash(link.up ? [] : [6, 5]);
      draw.beginPath();
      draw.moveTo(from.x, from.y);
      draw.lineTo(to.x, to.y);
      draw.stroke();
      draw.setLineDash([]);
      draw.globalAlpha = 1;
    }
  }

  private drawLinkLabels(draw: CanvasRenderingContext2D, labels: Box[]): void {
    for (const link of this.model.links) {
      const [a, b] = [this.places.get(link.a), this.places.get(link.b)];
      const kept = link.kept_bytes ?? 0;
      if (!a || !b || (link.up && kept < KEPT_SHOWN_BYTES)) continue;
      const [from, to] = [this.onScreen(a), this.onScreen(b)];
      const text = [link.up ? "" : "down", kept > 0 ? `${bytes(kept)} kept` : ""].filter(Boolean).join(", ");
      const colour = link.up ? this.colours.quiet : this.colours.bad;
      this.label(draw, [text], { x: (from.x + to.x) / 2, y: (from.y + to.y) / 2 }, labels, 0, colour, false);
    }
  }

  /** Clients sit around their broker, or where they say that they are. */
  private drawClients(draw: CanvasRenderingContext2D): void {
    this.at.clear();
    const perBroker = new Map<string, Client[]>();
    for (const client of this.model.clients.values()) {
      if (this.isOnEarth && hasPosition(client)) {
        this.at.set(client.id, this.onScreen(mercator(client.lat, client.lon)));
      } else if (client.broker !== null) {
        const others = perBroker.get(client.broker);
        if (others) others.push(client);
        else perBroker.set(client.broker, [client]);
      }
    }
    const room = this.roomAround();
    let size = 2.6;
    for (const [broker, clients] of perBroker) {
      const place = this.places.get(broker);
      if (!place) continue;
      const centre = this.onScreen(place);
      const inner = BROKER_RADIUS + 7;
      const outer = Math.max(Math.min(room * 0.46, 150), inner + 14);
      const distance = Math.min(8, Math.sqrt((outer * outer - inner * inner) / Math.max(clients.length, 1)));
      size = Math.max(1.1, Math.min(size, distance * 0.38));
      clients.forEach((client, index) => {
        const { x, y } = seat(index, distance, inner);
        this.at.set(client.id, { x: centre.x + x, y: centre.y + y });
      });
    }
    this.drawHalos(draw);
    for (const [colour, isShown] of [
      [this.colours.away, (client: Client) => !client.attached && !client.lost],
      [this.colours.client, (client: Client) => client.attached && !client.lost],
      [this.colours.bad, (client: Client) => Boolean(client.lost)],
    ] as const) {
      draw.fillStyle = colour;
      draw.beginPath();
      for (const client of this.model.clients.values()) {
        const place = isShown(client) ? this.at.get(client.id) : undefined;
        if (!place || place.x < -9 || place.y < -9 || place.x > this.width + 9 || place.y > this.height + 9) continue;
        if (size < 1.6) draw.rect(place.x - size, place.y - size, 2 * size, 2 * size);
        else {
          draw.moveTo(place.x + size, place.y);
          draw.arc(place.x, place.y, size, 0, 7);
        }
      }
      draw.fill();
    }
    const chosen = this.selection?.kind === "client" ? this.at.get(this.selection.id) : undefined;
    if (chosen) {
      draw.strokeStyle = this.colours.accent;
      draw.lineWidth = 2.5;
      draw.beginPath();
      draw.arc(chosen.x, chosen.y, size + 5, 0, 7);
      draw.stroke();
    }
  }

  /** A halo's area grows with the logarithm of the queue. */
  private drawHalos(draw: CanvasRenderingContext2D): void {
    draw.fillStyle = this.colours.halo;
    draw.globalAlpha = 0.28;
    draw.beginPath();
    for (const client of this.model.clients.values()) {
      const place = client.queued > 0 ? this.at.get(client.id) : undefined;
      if (!place) continue;
      const radius = haloOf(client);
      draw.moveTo(place.x + radius, place.y);
      draw.arc(place.x, place.y, radius, 0, 7);
    }
    draw.fill();
    draw.globalAlpha = 1;
  }

  private drawPredictions(draw: CanvasRenderingContext2D): void {
    const client = this.selection?.kind === "client" ? this.model.clients.get(this.selection.id) : undefined;
    const from = client && this.at.get(client.id);
    if (!client || !from) return;
    draw.strokeStyle = this.colours.accent;
    draw.lineWidth = 1.5;
    draw.setLineDash([3, 4]);
    for (const id of client.predicted ?? []) {
      const place = this.places.get(id);
      if (!place) continue;
      const to = this.onScreen(place);
      draw.beginPath();
      draw.moveTo(from.x, from.y);
      draw.lineTo(to.x, to.y);
      draw.stroke();
      draw.beginPath();
      draw.arc(to.x, to.y, BROKER_RADIUS + 5, 0, 7);
      draw.stroke();
    }
    draw.setLineDash([]);
  }

  private drawBrokers(draw: CanvasRenderingContext2D, labels: Box[]): void {
    const outer = this.discRadii();
    for (const [id, place] of this.places) {
      const { x, y } = this.onScreen(place);
      const reach = Math.max(0.75 * (outer.get(id) ?? 0), BROKER_RADIUS);
      labels.push({ left: x - reach, right: x + reach, top: y - reach, bottom: y + reach });
    }
    const names: [Broker, Point][] = [];
    for (const broker of this.model.brokers) {
      const place = this.places.get(broker.id);
      if (!place) continue;
      const { x, y } = this.onScreen(place);
      const isChosen = this.selection?.kind === "broker" && this.selection.id === broker.id;
      draw.beginPath();
      draw.arc(x, y, BROKER_RADIUS + (isChosen ? 3 : 0), 0, 7);
      draw.fillStyle = broker.up ? this.colours.accent : this.colours.surface;
      draw.fill();
      draw.lineWidth = isChosen ? 3 : 2;
      draw.strokeStyle = isChosen ? this.colours.ink : broker.up ? this.colours.surface : this.colours.bad;
      draw.stroke();
      if (!broker.up) {
        draw.strokeStyle = this.colours.bad;
        draw.lineWidth = 2;
        draw.beginPath();
        draw.moveTo(x - 4, y - 4);
        draw.lineTo(x + 4, y + 4);
        draw.moveTo(x + 4, y - 4);
        draw.lineTo(x - 4, y + 4);
        draw.stroke();
      }
      names.push([broker, { x, y }]);
    }
    // Brokers that are down or busy get their labels first; those that do not fit are left out.
    names.sort(([one], [other]) => Number(one.up) - Number(other.up) || (other.attached ?? 0) - (one.attached ?? 0));
    for (const [broker, place] of names.slice(0, LABELS_MAX)) {
      const lines = [broker.id, broker.up ? `${count(broker.attached ?? 0)} attached` : "down"];
      const colour = broker.up ? this.colours.ink : this.colours.bad;
      this.label(draw, lines, place, labels, (outer.get(broker.id) ?? BROKER_RADIUS) + 6, colour, true);
    }
  }

  /** How far the clients of each broker reach, halos included. */
  private discRadii(): Map<string, number> {
    const reach = new Map<string, number>();
    for (const client of this.model.clients.values()) {
      const place = client.broker === null ? undefined : this.places.get(client.broker);
      const at = this.at.get(client.id);
      if (!place || !at || client.broker === null || (this.isOnEarth && hasPosition(client))) continue;
      const centre = this.onScreen(place);
      const distance = Math.hypot(at.x - centre.x, at.y - centre.y) + haloOf(client);
      if (distance > (reach.get(client.broker) ?? 0)) reach.set(client.broker, distance);
    }
    return reach;
  }

  private roomAround(): number {
    const points = [...this.places.values()].map((place) => this.onScreen(place));
    let nearest = 320;
    for (let i = 0; i < points.length; i += 1)
      for (let j = i + 1; j < points.length; j += 1)
        nearest = Math.min(nearest, Math.hypot(points[i]!.x - points[j]!.x, points[i]!.y - points[j]!.y));
    return nearest;
  }

  /** Text below, above, right or left of a point, where it covers nothing; left out if it cannot. */
  private label(
    draw: CanvasRenderingContext2D, lines: string[], at: Point, taken: Box[], away: number, colour: string, isName: boolean,
  ): void {
    const [first = "", second = ""] = lines;
    const bold = isName ? "600 13px system-ui, sans-serif" : "11px system-ui, sans-serif";
    const plain = "11px system-ui, sans-serif";
    draw.font = bold;
    let wide = draw.measureText(shortened(first)).width;
    draw.font = plain;
    if (second) wide = Math.max(wide, draw.measureText(second).width);
    const high = second ? 30 : 15;
    const offsets: Point[] = isName
      ? [
          { x: -wide / 2, y: away },
          { x: -wide / 2, y: -away - high },
          { x: away, y: -high / 2 },
          { x: -away - wide, y: -high / 2 },
        ]
      : [{ x: -wide / 2, y: -high / 2 }];
    for (const offset of offsets) {
      const box = { left: at.x + offset.x - 3, top: at.y + offset.y - 1, right: at.x + offset.x + wide + 3, bottom: at.y + offset.y + high };
      const isFree = box.left > 0 && box.top > 0 && box.right < this.width && box.bottom < this.height;
      if (!isFree || taken.some((one) => one.left < box.right && box.left < one.right && one.top < box.bottom && box.top < one.bottom)) continue;
      taken.push(box);
      this.texts.push(box);
      if (!isName) {
        // It stands on its link, whose dashes would show between the words.
        draw.fillStyle = this.colours.map;
        draw.fillRect(box.left, box.top, box.right - box.left, box.bottom - box.top);
      }
      draw.textAlign = "center";
      draw.textBaseline = "top";
      draw.lineJoin = "round";
      draw.lineWidth = 4;
      draw.strokeStyle = this.colours.map;
      const write = (text: string, font: string, fill: string, down: number): void => {
        draw.font = font;
        draw.fillStyle = fill;
        draw.strokeText(text, (box.left + box.right) / 2, box.top + down);
        draw.fillText(text, (box.left + box.right) / 2, box.top + down);
      };
      write(shortened(first), bold, colour, 1);
      if (second) write(second, plain, colour === this.colours.bad ? colour : this.colours.quiet, 16);
      return;
    }
  }

  // --- handoffs ---

  private drawAbove(now: number): void {
    const draw = this.above;
    draw.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    draw.clearRect(0, 0, this.width, this.height);
    const recent = this.model.handoffs.filter((handoff) => now - handoff.shown_ms < ARC_MS);
    if (recent.length !== this.model.handoffs.length) this.model.handoffs = recent;
    if (!recent.length) return;
    draw.lineWidth = recent.length > 150 ? 1.2 : 2;
    draw.lineCap = "round";
    const strength = Math.min(1, Math.sqrt(120 / recent.length));
    const groups = new Map<string, Shown[]>();
    for (const handoff of recent) {
      const age = Math.floor((4 * (now - handoff.shown_ms)) / ARC_MS);
      const key = `${classOf(handoff.duration_ms)} ${age}`;
      const group = groups.get(key);
      if (group) group.push(handoff);
      else groups.set(key, [handoff]);
    }
    for (const [key, group] of groups) {
      const [kind, age] = key.split(" ").map(Number) as [0 | 1 | 2 | 3, number];
      const colour = this.colours[`arc-${kind + 1}` as "arc-1"];
      draw.strokeStyle = colour;
      draw.globalAlpha = strength * ([0.95, 0.7, 0.42, 0.18][Math.max(age, 0)] ?? 0.18);
      draw.beginPath();
      for (const handoff of group) {
        const arc = this.arcOf(handoff);
        if (!arc) continue;
        draw.moveTo(arc[0].x, arc[0].y);
        draw.quadraticCurveTo(arc[1].x, arc[1].y, arc[2].x, arc[2].y);
      }
      draw.stroke();
      if (this.isCalm.matches) continue;
      draw.fillStyle = colour;
      draw.globalAlpha = 1;
      draw.beginPath();
      for (const handoff of group) {
        const share = (now - handoff.shown_ms) / TRAVEL_MS;
        const arc = share < 1 ? this.arcOf(handoff) : null;
        if (!arc) continue;
        const { x, y } = along(arc, share);
        draw.moveTo(x + 3.2, y);
        draw.arc(x, y, 3.2, 0, 7);
      }
      draw.fill();
    }
    draw.globalAlpha = 1;
    for (const { left, right, top, bottom } of this.texts) draw.clearRect(left, top, right - left, bottom - top);
  }

  /** Both ends and what the curve bends towards; arcs between two brokers fan out, one way on each side. */
  private arcOf(handoff: Shown): [Point, Point, Point] | null {
    const [a, b] = [this.places.get(handoff.from), this.places.get(handoff.to)];
    if (!a || !b || handoff.from === handoff.to) return null;
    const [from, to] = [this.onScreen(a), this.onScreen(b)];
    const bend = 0.18 + 0.16 * shareOf(handoff.client);
    const [dx, dy] = [to.x - from.x, to.y - from.y];
    return [from, { x: (from.x + to.x) / 2 + bend * dy, y: (from.y + to.y) / 2 - bend * dx }, to];
  }

  // --- pointing and choosing ---

  private hit(x: number, y: number): Selection {
    for (const [id, place] of this.places) {
      const at = this.onScreen(place);
      if (Math.hypot(at.x - x, at.y - y) <= HIT_RADIUS) return { kind: "broker", id };
    }
    let best: Selection = null;
    let nearest = 8;
    for (const [id, at] of this.at) {
      const distance = Math.hypot(at.x - x, at.y - y);
      if (distance < nearest) [best, nearest] = [{ kind: "client", id }, distance];
    }
    return best;
  }

  private point(x: number, y: number): void {
    const found = this.hit(x, y);
    this.above.canvas.classList.toggle("pointing", found !== null);
    if (!found) return this.onHover("", 0, 0);
    const client = found.kind === "client" ? this.model.clients.get(found.id) : undefined;
    const more = client ? ` · ${client.attached ? "attached to" : "away, session at"} ${client.broker ?? "no broker"}${client.queued ? ` · ${count(client.queued)} queued` : ""}` : "";
    // Isolated, so that a name in letters from right to left leaves the rest as it is.
    this.onHover(`\u2068${found.id}\u2069${more}`, x, y);
  }

  // --- colours and coast lines ---

  private readColours(): void {
    const style = getComputedStyle(document.documentElement);
    this.colours = Object.fromEntries(COLOURS.map((name) => [name, style.getPropertyValue(`--${name}`).trim()])) as Colours;
    this.drawn = "";
  }

  private async loadLand(): Promise<void> {
    if (this.isLandAsked) return;
    this.isLandAsked = true;
    const { landPath } = await import("./land");
    this.land = landPath();
    this.drawn = "";
  }
}

export function classOf(duration_ms: number): number {
  return DURATIONS.findIndex((one) => duration_ms < one.below_ms);
}

function haloOf(client: Client): number {
  return client.queued > 0 ? 4 + 2.6 * Math.log10(1 + client.queued) : 0;
}

/** A number from 0 to 1 that is always the same for a name. */
function shareOf(name: string): number {
  let hash = 0;
  for (let i = 0; i < name.length; i += 1) hash = (31 * hash + name.charCodeAt(i)) | 0;
  return ((hash >>> 0) % 1000) / 1000;
}

function along([from, bend, to]: [Point, Point, Point], share: number): Point {
  const rest = 1 - share;
  return {
    x: rest * rest * from.x + 2 * rest * share * bend.x + share * share * to.x,
    y: rest * rest * from.y + 2 * rest * share * bend.y + share * share * to.y,
  };
}

function shortened(name: string): string {
  return name.length > 24 ? `${name.slice(0, 22)}…` : name;
}
