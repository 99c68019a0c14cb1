// The views that few people open first, in a file of their own: a notebook stores the widget's code with every widget, so
// that file holds what the first picture needs, and this one is asked for when one of its views is opened.

export { SegmentViews } from "./segment_views.js";
export { aboutView } from "./view_about.js";
export { FindingsView, findingPanel } from "./view_findings.js";
export { LiveView } from "./view_live.js";
