/** The coasts of the earth (Natural Earth, 1:110 million, public domain) in the square of `mercator`. */

import { feature } from "topojson-client";
import type { GeometryCollection, Topology } from "topojson-specification";
import atlas from "world-atlas/land-110m.json";
import { mercator } from "./layout";

export function landPath(): Path2D {
  const topology = atlas as unknown as Topology<{ land: GeometryCollection }>;
  const path = new Path2D();
  for (const { geometry } of feature(topology, topology.objects.land).features) {
    const polygons = geometry.type === "Polygon" ? [geometry.coordinates] : geometry.type === "MultiPolygon" ? geometry.coordinates : [];
    for (const ring of polygons.flat()) {
      ring.forEach(([lon = 0, lat = 0], index) => {
        const { x, y } = mercator(lat, lon);
        if (index) path.lineTo(x, y);
        else path.moveTo(x, y);
      });
      path.closePath();
    }
  }
  return path;
}
